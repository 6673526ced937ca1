#include "scheduler/layer_times.h"

#include <algorithm>
#include <cstddef>

namespace rp {

namespace {

void mix(double& value, double record, int num_records) {
  constexpr double kSmoothing = 0.9;
  if (record <= 0) return;
  value = num_records <= 2 || value == 0 ? record : kSmoothing * value + (1 - kSmoothing) * record;
}

}  // namespace

void LayerTimes::add(const std::vector<LayerTiming>& round) {
  const auto any = [&round](double LayerTiming::*phase) {
    return std::any_of(round.begin(), round.end(), [phase](const LayerTiming& layer) { return layer.*phase > 0; });
  };
  if (any(&LayerTiming::forward)) ++num_forwards_;
  if (any(&LayerTiming::backward)) ++num_backwards_;
  for (std::size_t i = 0; i < times_.size(); ++i) {
    mix(times_[i].forward, round[i].forward, num_forwards_);
    mix(times_[i].recompute, round[i].recompute, num_backwards_);
    mix(times_[i].backward, round[i].backward, num_backwards_);
  }
}

}  // namespace rp
