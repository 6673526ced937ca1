#include "scheduler/network_clock.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace rp {

NetworkClock::NetworkClock(PlanNetwork network, bool asynchronous)
    : network_(std::move(network)), asynchronous_(asynchronous) {
  restart();
}

void NetworkClock::restart() {
  link_free_ = 0;
  for (Step* const step : {&before_, &present_}) {
    step->waiting.clear();
    step->arrivals.assign(network_.layers.size(), 0);
  }
}

void NetworkClock::commit(const LayerRange& layers, double now, bool ends_step) {
  move_weights(before_, now);
  move_weights(present_, now);
  link_free_ = std::max(link_free_, now);
  for (int layer = layers.end; layer-- > layers.first;) {
    const LayerMessages& messages = network_.layers[static_cast<std::size_t>(layer)];
    if (messages.gradient == 0) continue;
    link_free_ += messages.gradient;
    if (!ends_step) continue;
    present_.waiting.push_back({.layer = layer, .known = link_free_ + network_.latency, .left = messages.weights});
  }
}

const std::vector<double>& NetworkClock::end_step() {
  Step& needed = asynchronous_ ? before_ : present_;
  move_weights(needed, INFINITY);
  if (asynchronous_) std::swap(before_, present_);
  return present_.arrivals;
}

void NetworkClock::move_weights(Step& step, double until) {
  while (!step.waiting.empty()) {
    Weights& weights = step.waiting.back();
    const double start = std::max(link_free_, weights.known);
    if (start >= until) return;
    link_free_ = std::min(until, start + weights.left);
    if (start + weights.left > until) {
      weights.left -= until - start;
      return;
    }
    step.arrivals[static_cast<std::size_t>(weights.layer)] = link_free_ + network_.latency;
    step.waiting.pop_back();
  }
}

}  // namespace rp
