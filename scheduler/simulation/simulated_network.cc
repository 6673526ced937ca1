#include "scheduler/simulation/simulated_network.h"

#include <algorithm>

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

void SimulatedNetwork::add(double now, Direction& direction, NetworkTransfer transfer) const {
  transfer.start = direction.empty() ? now : std::max(now, direction.back().end);
  transfer.end = transfer.start + transfer.bytes / work_.nodes.network;
  direction.push_back(transfer);
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
  add(now, out_, sent);
  add(now, in_, received);
}

void SimulatedNetwork::send_weights(double now, std::int64_t slot, int layer) {
  const double nodes = work_.nodes.num_nodes;
  NetworkTransfer weights{.slot = slot, .layer = layer, .bytes = bytes_of(layer).updated * (nodes - 1) / nodes};
  weights.kind = SpanKind::kSendWeights;
  add(now, out_, weights);
  weights.kind = SpanKind::kReceiveWeights;
  add(now, in_, weights);
}

double SimulatedNetwork::next_event() const {
  double next = kUnlimited;
  for (const Direction* direction : {&out_, &in_}) {
    if (!direction->empty()) next = std::min(next, direction->front().end);
  }
  return next;
}

std::vector<NetworkTransfer> SimulatedNetwork::take_ended(double now) {
  std::vector<NetworkTransfer> ended;
  for (Direction* direction : {&out_, &in_}) {
    for (; !direction->empty() && direction->front().end <= now; direction->pop_front())
      ended.push_back(direction->front());
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
