#include <cmath>
#include <numbers>

#include "common/text.h"
#include "roundpipe/error.h"
#include "roundpipe/optimizer.h"

namespace rp {

double scheduled_learning_rate(LearningRateSchedule schedule, double learning_rate, std::int64_t step,
                               std::int64_t warmup_steps, std::int64_t max_steps) {
  if (step < 1) {
    throw Error(ExitCode::kUsage, cat("learning-rate schedule: step ", step, " was asked for; steps count from 1"));
  }
  if (warmup_steps < 0) {
    throw Error(ExitCode::kUsage, cat("learning-rate schedule: ", warmup_steps, " warm-up steps; give 0 or more"));
  }
  if (step <= warmup_steps) return learning_rate * static_cast<double>(step) / static_cast<double>(warmup_steps);
  if (schedule == LearningRateSchedule::kConstant) return learning_rate;
  if (step >= max_steps) return 0.0;
  const double progress = static_cast<double>(step - warmup_steps) / static_cast<double>(max_steps - warmup_steps);
  if (schedule == LearningRateSchedule::kLinear) return learning_rate * (1.0 - progress);
  return learning_rate * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace rp
