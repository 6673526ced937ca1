// optimizer/update.h
// The passes over one block of parameters (a layer's, one after the other) that make an optimizer step: the update rules
// fused with the conversions from and to 16 bits, the sum of squares for clipping, the sum of several rounds' gradients.
//
// Gradients and working copies are of a working dtype (common/dtype.h: fp32, bf16 or fp16). A pass over another one is a broken
// invariant: it aborts and reads nothing.
//
// All arrays are plain memory of the caller, which nobody else writes during a pass. Every result is a function of the
// inputs alone: the number of threads, the processor's instruction set and the alignment of the arrays do not change a
// bit (only which of several NaN patterns a NaN in a master or moment has).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "common/dtype.h"
#include "optimizer/thread_team.h"
#include "roundpipe/optimizer.h"

namespace rp {

enum class UpdateKind : std::uint8_t { kAdam, kMomentum, kPlain };

// The number of fp32 values per parameter that a rule keeps between steps.
[[nodiscard]] constexpr int num_moments(UpdateKind kind) {
  return kind == UpdateKind::kAdam ? 2 : kind == UpdateKind::kMomentum ? 1 : 0;
}

// The numbers of one step, computed in fp64 and then rounded to fp32. The arithmetic for one element, in fp32, one
// rounding per operation (no fused multiply-add), in this order:
//   g = 0 + g_0 + g_1 + …              gradients of the uses of the parameter, in order, each converted to fp32
//   g = g * gradient_scale
//   g = max(-max_value, min(max_value, g))     where `clips_values`; NaN stays NaN
//   g = g + coupled_decay * p          where `couples_decay`
// kAdam, AdamW and Adam in torch.optim's order (mul_, lerp_, mul_ and addcmul_, addcdiv_), which fuses some operations:
//   p = p * decay
//   m = m + m_weight * (g - m)         where m_from_gradient: m = g + m_weight * (g - m)
//   v = v * beta2 + (v_weight * g) * g
//   p = p + (step_size * m) / (sqrt(v) / v_correction + epsilon)
// kMomentum:
//   m = m * m_decay + m_weight * g
//   p = p + step_size * m              where `nesterov`: p = p + step_size * (g + nesterov_weight * m)
// kPlain:
//   p = p + step_size * g
struct UpdateStep {
  // The coefficients of step `step`, counted from 1, without scaling and clipping.
  static UpdateStep of(const UpdateRule& rule, std::int64_t step);

  UpdateKind kind = UpdateKind::kAdam;
  float gradient_scale = 1;  // the clipping factor, or 1 over the loss scale; 1 changes nothing
  bool clips_values = false;
  float max_value = std::numeric_limits<float>::infinity();
  bool couples_decay = false;
  float coupled_decay = 0;   // weight decay as part of the gradient
  float decay = 1;           // 1 - learning_rate * weight_decay
  float m_decay = 0;         // momentum; 0 in the first step
  float m_weight = 0;        // kAdam: 1 - beta1 if that is below 0.5, else -beta1. kMomentum: 1 - dampening; 1 in the first
  bool m_from_gradient = false;  // 1 - beta1 >= 0.5: exact for beta1 = 0
  bool nesterov = false;
  float nesterov_weight = 0; // momentum
  float beta2 = 0;
  float v_weight = 0;      // 1 - beta2
  float v_correction = 1;  // sqrt(1 - beta2^t)
  float epsilon = 0;
  float step_size = 0;     // -learning_rate; kAdam: / (1 - beta1^t)
};

// A part of a block with a rule of its own: elements [begin, end).
struct UpdateSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
  UpdateStep step;
};

// Gradients of one block: one array per use of the block's parameters (two for a tied embedding), added in this order.
struct BlockGradients {
  const void* const* uses = nullptr;
  std::size_t num_uses = 0;
  DType dtype = DType::kBFloat16;
  std::size_t num_elements = 0;  // of each
};

// The weights and optimizer state of one block. Each array has num_elements elements and is aligned to its element;
// passes are fastest where all are aligned to 64 bytes. Arrays do not overlap, but old_master may be master itself.
struct BlockState {
  const float* old_master = nullptr;  // read; another array than `master` where two fp32 copies take turns
  float* master = nullptr;            // written
  float* m = nullptr;                 // first moment or momentum, updated in place; null where no rule needs it
  float* v = nullptr;                 // second moment, likewise
  void* working = nullptr;            // the copy that workers read, written; null where `master` is that copy
  DType working_dtype = DType::kBFloat16;
  std::size_t num_elements = 0;
};

// One step on a block: one pass, with AdamW 28 bytes per parameter with 16-bit gradients and working copy.
// REQUIRES: gradients.num_elements == state.num_elements, num_uses >= 1; the spans cover the block, in order; the moments
// of their rules are there.
void update_block(const BlockState& state, const BlockGradients& gradients, std::span<const UpdateSpan> spans, ThreadTeam& team);
// The same with one rule.
void update_block(const BlockState& state, const BlockGradients& gradients, const UpdateStep& step, ThreadTeam& team);

// A step that is skipped (overflow): the working copy and `master` are written anew from old_master; moments stay.
void skip_block(const BlockState& state, ThreadTeam& team);

// sum += the gradients, in the order 0 + g_0 + g_1 + … as above; `sum` is fp32, for several rounds per step.
void add_gradients(float* sum, const BlockGradients& gradients, ThreadTeam& team);

// out = the gradient that a rule would see: g after scaling and clipping, of the header's arithmetic; `out` is fp32.
void write_gradient(float* out, const BlockGradients& gradients, const UpdateStep& step, ThreadTeam& team);

// The number of fp64 that sum_of_squares() needs as scratch for a block of num_elements.
[[nodiscard]] std::size_t num_partial_sums(std::size_t num_elements);

// Sum of the squares, in fp64, of g = 0 + g_0 + g_1 + … (fp32). The order is fixed: chunks of 65,536 elements; in a
// chunk element i goes to partial sum i mod 16, then 0 + 1 + … + 15; then the chunks in order. NaN or infinity in,
// NaN or infinity out.
// REQUIRES: partial_sums.size() >= num_partial_sums(gradients.num_elements).
[[nodiscard]] double sum_of_squares(const BlockGradients& gradients, std::span<double> partial_sums, ThreadTeam& team);

// rounded = the fp32 sums in `dtype`; returns sum_of_squares() of them as one use, with its bits, in the same pass.
// REQUIRES: partial_sums.size() >= num_partial_sums(num_elements).
[[nodiscard]] double round_gradient(const float* sums, void* rounded, DType dtype, std::size_t num_elements,
                                    std::span<double> partial_sums, ThreadTeam& team);

}  // namespace rp
