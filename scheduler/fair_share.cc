#include "scheduler/fair_share.h"

#include <algorithm>
#include <cstddef>

namespace rp {

void FairShare::share(const std::vector<Flow>& flows, std::vector<double>& rates) {
  left_ = capacities_;
  open_.assign(capacities_.size(), 0);
  is_open_.assign(flows.size(), true);
  rates.assign(flows.size(), 0);
  const auto for_resources = [](const Flow& flow, auto&& action) {
    for (std::size_t i = 0; i < flow.resources.size(); ++i) {
      if (flow.resources[i] != Flow::kNone) action(static_cast<std::size_t>(flow.resources[i]), flow.uses[i]);
    }
  };
  for (const Flow& flow : flows) {
    for_resources(flow, [this](std::size_t resource, double use) { open_[resource] += use; });
  }
  for (std::size_t closed = 0; closed < flows.size();) {
    // All open flows have the same rate: the first limit that it meets, of a flow or of a resource, closes some of them.
    std::size_t first = flows.size();
    double rate = 0;
    for (std::size_t i = 0; i < flows.size(); ++i) {
      if (!is_open_[i]) continue;
      double reached = flows[i].limit;
      for_resources(flows[i], [&](std::size_t resource, double) { reached = std::min(reached, left_[resource] / open_[resource]); });
      if (first == flows.size() || reached < rate) {
        first = i;
        rate = reached;
      }
    }
    is_open_[first] = false;
    rates[first] = std::max(0.0, rate);
    ++closed;
    for_resources(flows[first], [&](std::size_t resource, double use) {
      left_[resource] -= rate * use;
      open_[resource] -= use;
    });
  }
}

}  // namespace rp
