// roundpipe/optimizer.h
// Update rules that run on the coordinator, and learning-rate schedules.
#pragma once

#include <cstdint>

namespace rp {

// AdamW (decoupled weight decay; Loshchilov and Hutter 2019) over fp32 masters and moments, with bias correction:
//   p -= learning_rate * weight_decay * p;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   p -= learning_rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
struct AdamW {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
};

struct StepOptions {
  // The update runs beside the next round, which uses weights one step older (staleness 1). All steps of a run are
  // alike: mixing is an error.
  bool asynchronous = false;
  // Gradients are scaled down to this global L2 norm; 0 switches clipping off. A barrier: all gradients of the step
  // are there before the first update.
  double max_grad_norm = 0.0;
};

// Learning rate of step `step` (counted from 1): rises linearly over `warmup_steps`, then constant or falling as half a
// cosine to 0 at `max_steps`.
enum class LearningRateSchedule : std::uint8_t { kConstant, kCosine };
[[nodiscard]] double scheduled_learning_rate(LearningRateSchedule schedule, double learning_rate, std::int64_t step,
                                             std::int64_t warmup_steps, std::int64_t max_steps);

}  // namespace rp
