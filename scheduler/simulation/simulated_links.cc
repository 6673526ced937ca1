#include "scheduler/simulation/simulated_links.h"

#include <algorithm>

#include "common/check.h"

namespace rp {

namespace {

int num_roots(const Machine& machine, int num_gpus) {
  RP_ASSERT(machine.gpus_per_root >= 1);
  return (num_gpus + machine.gpus_per_root - 1) / machine.gpus_per_root;
}

// In this order: each GPU's link, uploads of each root, downloads of each root, the host's memory.
std::vector<double> capacities(const Machine& machine, int num_gpus) {
  const auto roots = static_cast<std::size_t>(num_roots(machine, num_gpus));
  std::vector<double> result(static_cast<std::size_t>(num_gpus), machine.both_directions);
  result.insert(result.end(), roots, machine.root_upload);
  result.insert(result.end(), roots, machine.root_download);
  result.push_back(machine.host_memory);
  return result;
}

bool is_narrow(const std::vector<double>& resources) {
  return std::any_of(resources.begin(), resources.end(), [](double capacity) { return capacity < kUnlimited; });
}

}  // namespace

SimulatedLinks::SimulatedLinks(const Machine& machine, const TransferPolicy& policy, int num_gpus)
    : machine_(machine),
      policy_(policy),
      num_gpus_(num_gpus),
      num_roots_(num_roots(machine, num_gpus)),
      queues_(static_cast<std::size_t>(num_gpus) * 2, CopyQueue(policy.piece)),
      share_(capacities(machine, num_gpus)),
      is_shared_(is_narrow(capacities(machine, num_gpus))),
      ends_(queues_.size(), kUnlimited) {}

void SimulatedLinks::add(int gpu, const SimulatedCopy& copy) {
  CopyQueue& waiting = queue(gpu, copy.is_upload());
  const auto number = static_cast<std::size_t>(&waiting - queues_.data());
  if (waiting.is_empty()) used_.insert(std::lower_bound(used_.begin(), used_.end(), number), number);
  const bool yields = copy.kind == CopyKind::kWeights ? policy_.weights_yield : policy_.gradients_yield;
  if (copy.is_bulk() && yields) {
    waiting.add_bulk(copy);
  } else {
    waiting.add_urgent(copy);
  }
}

void SimulatedLinks::start_update(double bytes) {
  RP_ASSERT(!is_updating_);
  is_updating_ = changed_ = true;
  update_bytes_ = bytes;
}

// Returns true if an urgent copy runs or waits in the same direction on another GPU at the same
// root.
bool SimulatedLinks::bulk_waits(std::size_t queue) const {
  const auto per_root = static_cast<std::size_t>(machine_.gpus_per_root);
  if (per_root == 1 || !policy_.roots_yield) return false;
  const std::size_t first = queue / 2 / per_root * per_root * 2;
  for (std::size_t other = first + queue % 2; other < std::min(first + 2 * per_root, queues_.size()); other += 2) {
    if (other != queue && queues_[other].has_urgent()) return true;
  }
  return false;
}

Flow SimulatedLinks::flow_of(std::size_t queue) const {
  const bool upload = queue % 2 == 0;
  const int gpu = static_cast<int>(queue / 2), root = gpu / machine_.gpus_per_root;
  Flow flow{.limit = upload ? machine_.upload : machine_.download,
            .resources = {gpu, num_gpus_ + (upload ? 0 : num_roots_) + root, num_gpus_ + 2 * num_roots_}};
  if (queues_[queue].active().kind == CopyKind::kWeights) {
    flow.limit = std::min(flow.limit, machine_.weights_upload);
    flow.uses.back() = machine_.weights_traffic;
  }
  return flow;
}

void SimulatedLinks::share_rates() {
  if (!changed_) return;
  changed_ = false;
  flows_.clear();
  for (const std::size_t i : used_) {
    if (queues_[i].is_active()) flows_.push_back(flow_of(i));
  }
  if (is_updating_) {
    flows_.push_back({.limit = machine_.updates, .resources = {num_gpus_ + 2 * num_roots_, Flow::kNone, Flow::kNone}});
  }
  if (is_shared_) {
    share_.share(flows_, rates_);
  } else {
    rates_.clear();
    for (const Flow& flow : flows_) rates_.push_back(flow.limit);
  }
  std::size_t next = 0;
  for (const std::size_t i : used_) {
    if (queues_[i].is_active()) queues_[i].set_rate(rates_[next++]);
  }
  if (is_updating_) update_rate_ = rates_[next];
}

double SimulatedLinks::next_event(double now) {
  now_ = now;
  for (const std::size_t i : used_) changed_ |= queues_[i].start(now, queues_[i].asks_for_others() && bulk_waits(i));
  share_rates();
  update_end_ = is_updating_ ? now + update_bytes_ / update_rate_ : kUnlimited;
  double next = update_end_;
  for (const std::size_t i : used_) {
    ends_[i] = queues_[i].next_event(now, queues_[i].asks_for_others() && bulk_waits(i));
    next = std::min(next, ends_[i]);
  }
  return next;
}

const std::vector<SimulatedLinks::End>& SimulatedLinks::advance(double now) {
  const double ms = now - now_;
  ended_.clear();
  for (const std::size_t i : used_) {
    queues_[i].advance(ms);
    if (ends_[i] > now) continue;
    ended_.push_back({.gpu = static_cast<int>(i / 2), .copy = queues_[i].stop()});
    changed_ = true;
  }
  if (!ended_.empty()) std::erase_if(used_, [this](std::size_t i) { return queues_[i].is_empty(); });
  update_has_ended_ = is_updating_ && update_end_ <= now;
  if (update_has_ended_) {
    is_updating_ = false;
    changed_ = true;
  } else if (is_updating_ && ms > 0) {
    update_bytes_ -= update_rate_ * ms;
  }
  return ended_;
}

}  // namespace rp
