#include "scheduler/simulation/simulated_network.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/nodes.h"

namespace rp {

SimulatedNetwork::SimulatedNetwork(const RunWork& work)
    : work_(work),
      num_rounds_(work.nodes.rounds_per_step > 0
                      ? work.nodes.rounds_per_step
                      : work.workload.num_microbatches / work.workload.round_microbatches * work.nodes.num_nodes) {
  RP_ASSERT(rounds_of_first_node(num_rounds_, work.nodes.num_nodes) * work.workload.round_microbatches ==
            work.workload.num_microbatches);
}

double SimulatedNetwork::nodes_with(int own_round) const {
  return nodes_with_round(own_round, num_rounds_, work_.nodes.num_nodes);
}

void SimulatedNetwork::add(double now, Direction& direction, const Order& order,
                           const NetworkTransfer& transfer) const {
  if (direction.waiting.empty() || order < direction.waiting.begin()->first) {
    if (!direction.waiting.empty()) {  // what has moved of the first one has ended
      NetworkTransfer& first = direction.waiting.begin()->second;
      NetworkTransfer part = first;
      part.end = now;
      part.bytes = std::min(first.bytes, (now - first.start) * work_.nodes.network);
      part.is_last = false;
      if (now > first.start) {
        direction.ended.push_back(part);
        first.bytes -= part.bytes;
      }
    }
    direction.waiting.emplace(order, transfer);
    begin_first(now, direction);
  } else {
    direction.waiting.emplace(order, transfer);
  }
}

void SimulatedNetwork::begin_first(double now, Direction& direction) const {
  if (direction.waiting.empty()) return;
  NetworkTransfer& first = direction.waiting.begin()->second;
  first.start = now;
  first.end = now + first.bytes / work_.nodes.network;
}

// A node owns 1/n of each layer: it sends the other parts of its own gradient, and receives its part of the others'.
void SimulatedNetwork::send_gradient(double now, std::int64_t slot, int layer, int own_round) {
  const double bytes = bytes_of(layer).gradient, nodes = work_.nodes.num_nodes;
  const NetworkTransfer gradient{.slot = slot, .layer = layer};
  NetworkTransfer sent = gradient, received = gradient;
  sent.kind = SpanKind::kSendGradient;
  sent.bytes = bytes * (nodes - 1) / nodes;
  received.kind = SpanKind::kReceiveGradient;
  received.bytes = bytes * (nodes_with(own_round) - 1) / nodes;
  add(now, out_, {}, sent);
  add(now, in_, {}, received);
}

void SimulatedNetwork::send_weights(double now, std::int64_t slot, int layer, int step) {
  const Order order{.is_weights = true, .step = step, .layer = layer};
  const double nodes = work_.nodes.num_nodes;
  NetworkTransfer weights{.slot = slot, .layer = layer, .bytes = bytes_of(layer).updated * (nodes - 1) / nodes};
  weights.kind = SpanKind::kSendWeights;
  add(now, out_, order, weights);
  weights.kind = SpanKind::kReceiveWeights;
  add(now, in_, order, weights);
}

double SimulatedNetwork::next_event() const {
  double next = kUnlimited;
  for (const Direction* direction : {&out_, &in_}) {
    if (!direction->waiting.empty()) next = std::min(next, direction->waiting.begin()->second.end);
  }
  return next;
}

std::vector<NetworkTransfer> SimulatedNetwork::take_ended(double now) {
  std::vector<NetworkTransfer> ended;
  for (Direction* direction : {&out_, &in_}) {
    for (const NetworkTransfer& part : std::exchange(direction->ended, {})) ended.push_back(part);
    while (!direction->waiting.empty() && direction->waiting.begin()->second.end <= now) {
      ended.push_back(direction->waiting.begin()->second);
      direction->waiting.erase(direction->waiting.begin());
      begin_first(ended.back().end, *direction);
    }
  }
  return ended;
}

// On one node, the sum of a step's last round is not counted, because the update reads it at once.
double SimulatedNetwork::update_bytes(int layer, int own_round, bool ends_step) const {
  const LayerBytes bytes = bytes_of(layer);
  const double nodes = work_.nodes.num_nodes, sums = nodes_with(own_round);
  return ((ends_step ? sums - 1 : sums) * bytes.sum + (ends_step ? bytes.update : 0)) / nodes;
}

}  // namespace rp
