// optimizer/update.h
// The passes over one weight group (the parameters of a layer, one after the other) that make an
// optimizer step: the update rules, fused with the conversions from and to 16 bits; the sum of
// squares for clipping; and the sum of several rounds' gradients.
//
// Gradients and working copies have a working dtype (common/dtype.h: fp32, bf16 or fp16). A pass
// over another dtype is a broken invariant: it aborts and reads nothing.
//
// All arrays are plain memory of the caller, which no other thread writes during a pass. Every
// result depends only on the inputs: the number of threads, the processor's instruction set and the
// alignment of the arrays do not change a bit. (The only exception is which of several NaN patterns
// a NaN in a master or moment has.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/nodes.h"
#include "kernels/update_arguments.h"
#include "optimizer/thread_team.h"
#include "optimizer/update_journal.h"
#include "roundpipe/optimizer.h"

namespace rp {

// Returns the coefficients of step `step`, counted from 1, without scaling and clipping.
[[nodiscard]] UpdateStep update_step_of(const UpdateRule& rule, std::int64_t step);

// Returns the coefficients with which update_group() moves the correction of a router along its load_signs(), without
// scaling and clipping. `rate`: StepOptions::router_bias_update_rate.
[[nodiscard]] UpdateStep correction_step(double rate);

// Returns the signs of the loads of a router's experts: 1 where the gradient (the load) is above the mean over all
// elements, -1 where it is below, 0 where it is equal. Exact for loads that are whole numbers up to 2^24.
[[nodiscard]] std::vector<float> load_signs(const GroupGradients& loads);

// A part of a group that has its own rule: elements [begin, end).
struct UpdateSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
  UpdateStep step;
};

// Applies one step to a group, in one pass. With AdamW, 16-bit gradients and a 16-bit working copy,
// the pass moves 28 bytes per parameter.
// REQUIRES: gradients.num_elements == state.num_elements, num_uses >= 1; the spans cover the group,
// in order; the moments that their rules need exist.
void update_group(const GroupState& state, const GroupGradients& gradients, std::span<const UpdateSpan> spans,
                  ThreadTeam& team);
// The same, such that another process can finish it: see UpdateJournal::run(). `state` and `gradients` must outlive the
// process, too.
void update_group(const GroupState& state, const GroupGradients& gradients, std::span<const UpdateSpan> spans,
                  ThreadTeam& team, UpdateJournal& journal, std::uint64_t pass);
// The same with one rule for the whole group.
void update_group(const GroupState& state, const GroupGradients& gradients, const UpdateStep& step, ThreadTeam& team);

// Skips a step (after an overflow): writes the working copy and `master` again from old_master. The
// moments do not change.
void skip_group(const GroupState& state, ThreadTeam& team);

// Computes sum = sum + (0 + g_0 + g_1 + …), with the gradients g_i of the group's uses in order.
// `sum` is fp32, for several rounds per step. `begins`: with 0 in place of the old sum. The caller
// alone adds pieces of one or two chunks.
void add_gradients(float* sum, const GroupGradients& gradients, ThreadTeam& team, bool begins = false);

// Computes out = the gradient that a rule would see: g after scaling and clipping, with the
// arithmetic that kernels/update_arguments.h defines. `out` is fp32.
void write_gradient(float* out, const GroupGradients& gradients, const UpdateStep& step, ThreadTeam& team);

// Writes to `sums`, for each chunk, the sum of the squares, in fp64, of g = 0 + g_0 + g_1 + … (fp32).
// The order is fixed: in each chunk of kChunkElements (65,536) elements, element i is added to lane
// i mod 16, and the lanes are added as 0 + 1 + … + 15. If an input of a chunk is NaN or infinite, so
// is its sum.
// REQUIRES: sums.size() == num_chunks(gradients.num_elements).
void sum_squares_of_chunks(const GroupGradients& gradients, std::span<double> sums, ThreadTeam& team);

// Returns 0 + sums[0] + sums[1] + …: the sum of squares of all chunks of a group.
[[nodiscard]] double add_in_order(std::span<const double> sums);

// Rounds the fp32 sums to `dtype`, and returns the sum of squares of the rounded values as one use,
// in the order of the two functions above.
// REQUIRES: partial_sums.size() >= num_chunks(num_elements).
[[nodiscard]] double round_gradient(const float* sums, void* rounded, DType dtype, std::size_t num_elements,
                                    std::span<double> partial_sums, ThreadTeam& team);

}  // namespace rp
