#include "train/output/step_clock.h"

#include <numeric>

#include "common/system/clock.h"

namespace rp {
namespace {

constexpr std::size_t kRecentSteps = 20;

}  // namespace

double StepClock::on_step(std::int64_t now_ns) {
  const double seconds = static_cast<double>(now_ns - last_ns_) / static_cast<double>(kNsPerSecond);
  last_ns_ = now_ns;
  if (has_first_ || recent_.size() == kRecentSteps) recent_.pop_front();
  has_first_ = false;
  recent_.push_back(seconds);
  if (!is_started_) {
    is_started_ = true;
    has_first_ = true;
  }
  return seconds;
}

double StepClock::seconds_for(std::int64_t num_steps) const {
  if (recent_.empty()) return 0;
  const double sum = std::accumulate(recent_.begin(), recent_.end(), 0.0);
  return sum / static_cast<double>(recent_.size()) * static_cast<double>(num_steps);
}

}  // namespace rp
