#include "scheduler/simulation/fair_share.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace rp {

namespace {

template <typename Action>
void for_resources(const Flow& flow, Action&& action) {
  for (std::size_t i = 0; i < flow.resources.size(); ++i) {
    if (flow.resources[i] != Flow::kNone) action(static_cast<std::size_t>(flow.resources[i]), flow.uses[i]);
  }
}

}  // namespace

void FairShare::share(const std::vector<Flow>& flows, std::vector<double>& rates) {
  left_ = capacities_;
  used_.assign(capacities_.size(), 0);
  reached_.resize(capacities_.size());
  rates.resize(flows.size());
  open_.resize(flows.size());
  for (const Flow& flow : flows) {
    for_resources(flow, [this](std::size_t resource, double use) { used_[resource] += use; });
  }
  for (std::size_t i = 0; i < reached_.size(); ++i) reached_[i] = left_[i] / used_[i];
  for (std::size_t i = 0; i < flows.size(); ++i)
    open_[i] = {.number = i, .limit = flows[i].limit, .resources = flows[i].resources};
  while (!open_.empty()) {
    // All open flows have the same rate. It grows until it meets the first limit of a flow or of a
    // resource.
    double rate = std::numeric_limits<double>::infinity();
    for (Open& flow : open_) {
      flow.reached = flow.limit;
      for (const int resource : flow.resources) {
        if (resource != Flow::kNone) flow.reached = std::min(flow.reached, reached_[resource]);
      }
      rate = std::min(rate, flow.reached);
    }
    std::erase_if(open_, [&](const Open& flow) {
      if (flow.reached > rate) return false;
      rates[flow.number] = std::max(0.0, rate);
      for_resources(flows[flow.number], [&](std::size_t resource, double use) {
        left_[resource] -= rate * use;
        used_[resource] -= use;
        reached_[resource] = left_[resource] / used_[resource];
      });
      return true;
    });
  }
}

}  // namespace rp
