// optimizer/update.h
// The passes over one weight group (a layer's parameters, one after the other) that make an optimizer step: the update
// rules fused with the conversions from and to 16 bits, the sum of squares for clipping, the sum of several rounds'
// gradients.
//
// Gradients and working copies are of a working dtype (common/dtype.h: fp32, bf16 or fp16). A pass over another one is
// a broken invariant: it aborts and reads nothing.
//
// All arrays are plain memory of the caller, which nobody else writes during a pass. Every result is a function of the
// inputs alone: the number of threads, the processor's instruction set and the alignment of the arrays do not change a
// bit (only which of several NaN patterns a NaN in a master or moment has).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/update_arguments.h"
#include "optimizer/thread_team.h"
#include "roundpipe/optimizer.h"

namespace rp {

// The coefficients of step `step`, counted from 1, without scaling and clipping.
[[nodiscard]] UpdateStep update_step_of(const UpdateRule& rule, std::int64_t step);

// A part of a group with a rule of its own: elements [begin, end).
struct UpdateSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
  UpdateStep step;
};

// One step on a group: one pass, with AdamW 28 bytes per parameter with 16-bit gradients and working copy.
// REQUIRES: gradients.num_elements == state.num_elements, num_uses >= 1; the spans cover the group, in order; the
// moments of their rules are there.
void update_group(const GroupState& state, const GroupGradients& gradients, std::span<const UpdateSpan> spans,
                  ThreadTeam& team);
// The same with one rule.
void update_group(const GroupState& state, const GroupGradients& gradients, const UpdateStep& step, ThreadTeam& team);

// A step that is skipped (overflow): the working copy and `master` are written anew from old_master; moments stay.
void skip_group(const GroupState& state, ThreadTeam& team);

// sum += the gradients, in the order 0 + g_0 + g_1 + … as above; `sum` is fp32, for several rounds per step.
void add_gradients(float* sum, const GroupGradients& gradients, ThreadTeam& team);

// out = the gradient that a rule would see: g after scaling and clipping, of the header's arithmetic; `out` is fp32.
void write_gradient(float* out, const GroupGradients& gradients, const UpdateStep& step, ThreadTeam& team);

// The number of fp64 that sum_of_squares() needs as scratch for a group of num_elements.
[[nodiscard]] std::size_t num_partial_sums(std::size_t num_elements);

// Sum of the squares, in fp64, of g = 0 + g_0 + g_1 + … (fp32). The order is fixed: chunks of 65,536 elements; in a
// chunk element i goes to partial sum i mod 16, then 0 + 1 + … + 15; then the chunks in order. NaN or infinity in,
// NaN or infinity out.
// REQUIRES: partial_sums.size() >= num_partial_sums(gradients.num_elements).
[[nodiscard]] double sum_of_squares(const GroupGradients& gradients, std::span<double> partial_sums, ThreadTeam& team);

// rounded = the fp32 sums in `dtype`; returns sum_of_squares() of them as one use, with its bits, in the same pass.
// REQUIRES: partial_sums.size() >= num_partial_sums(num_elements).
[[nodiscard]] double round_gradient(const float* sums, void* rounded, DType dtype, std::size_t num_elements,
                                    std::span<double> partial_sums, ThreadTeam& team);

}  // namespace rp
