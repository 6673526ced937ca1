// kernels/update_arguments.h
// Arguments of the optimizer's loops over one weight group (cpu/update_kernels.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "common/dtype.h"

namespace rp {

enum class UpdateKind : std::uint8_t { kAdam, kMomentum, kPlain };

// Returns the number of fp32 values per parameter that a rule keeps between steps.
[[nodiscard]] constexpr int num_moments(UpdateKind kind) {
  return kind == UpdateKind::kAdam ? 2 : kind == UpdateKind::kMomentum ? 1 : 0;
}

// The numbers of one step, computed in fp64 and then rounded to fp32. The arithmetic for one
// element is in fp32, with one rounding per operation (no fused multiply-add), in this order:
//   g = 0 + g_0 + g_1 + …              gradients of the uses of the parameter, in order, each converted to fp32
//   g = g * gradient_scale
//   g = max(-max_value, min(max_value, g))     if `clips_values`; NaN stays NaN
//   g = g + coupled_decay * p          if `couples_decay`
// kAdam: AdamW and Adam in the order of torch.optim (mul_, lerp_, mul_ and addcmul_, addcdiv_),
// which fuses some operations:
//   p = p * decay
//   m = m + m_weight * (g - m)         if m_from_gradient: m = g + m_weight * (g - m)
//   v = v * beta2 + (v_weight * g) * g
//   p = p + (step_size * m) / (sqrt(v) / v_correction + epsilon)
// kMomentum:
//   m = m * m_decay + m_weight * g
//   p = p + step_size * m              if `nesterov`: p = p + step_size * (g + nesterov_weight * m)
// kPlain:
//   p = p + step_size * g
struct UpdateStep {
  UpdateKind kind = UpdateKind::kAdam;
  float gradient_scale = 1;  // the clipping factor, or 1 over the loss scale; 1 changes nothing
  bool clips_values = false;
  float max_value = std::numeric_limits<float>::infinity();
  bool couples_decay = false;
  float coupled_decay = 0;  // weight decay as part of the gradient
  float decay = 1;          // 1 - learning_rate * weight_decay
  float m_decay = 0;        // momentum; 0 in the first step
  // kAdam: 1 - beta1 if that is below 0.5, else -beta1. kMomentum: 1 - dampening, or 1 in the first
  // step.
  float m_weight = 0;
  bool m_from_gradient = false;  // true if 1 - beta1 >= 0.5; exact for beta1 = 0
  bool nesterov = false;
  float nesterov_weight = 0;  // momentum
  float beta2 = 0;
  float v_weight = 0;      // 1 - beta2
  float v_correction = 1;  // sqrt(1 - beta2^t)
  float epsilon = 0;
  float step_size = 0;  // -learning_rate; kAdam: divided by (1 - beta1^t)
};

// The gradients of one group: one array per use of the group's parameters (several for tied
// ones). They are added in this order.
struct GroupGradients {
  const void* const* uses = nullptr;
  std::size_t num_uses = 0;
  DType dtype = DType::kBFloat16;
  std::size_t num_elements = 0;  // of each array
};

// Holds the elements that an update is about to overwrite, in memory that outlives the process, so that another process
// can finish the update (optimizer/update_journal.h). A few elements at a time: first they are copied into one of the
// two halves, in turn; then `place` names them; then they are overwritten. The stores take effect in this order.
inline constexpr std::size_t kUndoElements = 32;
struct UpdateUndo {
  using ShmFormat = void;
  // (first << 8) | (number << 1) | half: the elements that are copied and may be overwritten. Those before them in the
  // chunk are updated.
  std::uint64_t place = 0;
  std::uint64_t reserved[7] = {};
  float master[2][kUndoElements] = {};
  float m[2][kUndoElements] = {};
  float v[2][kUndoElements] = {};

  [[nodiscard]] static constexpr std::uint64_t place_of(std::size_t first, std::size_t num, std::uint64_t half) {
    return first << 8 | num << 1 | half;
  }
};

// The weights and optimizer state of one group. Each array has num_elements elements and is aligned
// to its element; updates are fastest if all are aligned to 64 bytes. Arrays do not overlap, except
// that old_master may be master.
struct GroupState {
  const float* old_master = nullptr;  // read; differs from `master` if two fp32 copies are used alternately
  float* master = nullptr;            // written
  float* m = nullptr;                 // first moment or momentum, updated in place; null if the rule has none
  float* v = nullptr;                 // second moment, updated in place; null if the rule has none
  UpdateUndo* undo = nullptr;         // if set, an update records there what it overwrites
  void* working = nullptr;            // written: the copy that workers read; null if that is `master`
  DType working_dtype = DType::kBFloat16;
  std::size_t num_elements = 0;
};

}  // namespace rp
