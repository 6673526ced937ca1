#include <algorithm>
#include <cmath>
#include <numbers>

#include "common/text.h"
#include "roundpipe/error.h"
#include "roundpipe/optimizer.h"

namespace rp {

namespace {

void check(const LearningRate& rate, std::int64_t step) {
  const auto refuse = [](const auto&... what) {
    throw Error(ExitCode::kUsage, cat("learning-rate schedule: ", what...));
  };
  if (step < 1) refuse("step ", step, " was asked for; steps count from 1");
  if (rate.warmup_steps < 0) refuse(rate.warmup_steps, " warm-up steps; give 0 or more");
  if (rate.decay_steps < 0) refuse(rate.decay_steps, " decay steps; give 0 or more");
  if (!(rate.minimum >= 0 && rate.minimum <= rate.peak))
    refuse("the minimum ", rate.minimum, " is not between 0 and the peak, ", rate.peak);
}

}  // namespace

double LearningRate::at(std::int64_t step) const {
  check(*this, step);
  if (step <= warmup_steps) return peak * static_cast<double>(step) / static_cast<double>(warmup_steps);
  if (schedule == LearningRateSchedule::kConstant) return peak;
  const bool is_stable_first = schedule == LearningRateSchedule::kWarmupStableDecay;
  const std::int64_t stable_until = is_stable_first ? std::max(warmup_steps, max_steps - decay_steps) : warmup_steps;
  if (step <= stable_until) return peak;
  if (step > max_steps) return minimum;
  const double progress = static_cast<double>(step - 1 - stable_until) / static_cast<double>(max_steps - stable_until);
  const double share =
      schedule == LearningRateSchedule::kCosine ? 0.5 * (1.0 + std::cos(std::numbers::pi * progress)) : 1.0 - progress;
  return minimum + (peak - minimum) * share;
}

}  // namespace rp
