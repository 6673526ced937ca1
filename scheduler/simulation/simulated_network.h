// scheduler/simulation/simulated_network.h
// Simulates a node's link to the other nodes in a simulated run: what is sent and received when a
// gradient is committed and when a layer is updated (docs/design/several-nodes.md). Virtual time, in
// ms.
//
// All nodes are equal, and do the same at the same time: when this node sends a gradient to its
// owners, the other nodes send theirs, so what it receives begins to move at the same moment. Each
// direction of the link moves one transfer at a time, in the order in which they begin. So the link
// is simulated without knowing how many other nodes there are.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "scheduler/simulation/machine.h"
#include "scheduler/simulation/run_record.h"

namespace rp {

// What this node sends to all other nodes, or receives from them, of one layer.
struct NetworkTransfer {
  SpanKind kind = SpanKind::kSendGradient;
  std::int64_t slot = 0;
  int layer = 0;
  double bytes = 0;
  double start = 0;
  double end = 0;
};

class SimulatedNetwork {
 public:
  // `work` must outlive this object.
  explicit SimulatedNetwork(const RunWork& work);

  [[nodiscard]] bool has_others() const { return work_.nodes.num_nodes > 1; }

  // Begin the transfers that follow a commit of a layer's gradient, and the update of what this node
  // owns of the layer. `own_round`: counts this node's rounds of the step. REQUIRES: has_others().
  void send_gradient(double now, std::int64_t slot, int layer, int own_round);
  void send_weights(double now, std::int64_t slot, int layer);

  // Returns the time at which the next transfer ends.
  [[nodiscard]] double next_event() const;
  // Removes and returns the transfers that have ended.
  [[nodiscard]] std::vector<NetworkTransfer> take_ended(double now);

  // Returns the bytes through host memory that this node's update of a layer takes at the end of an
  // own round: the additions of the gradients of all nodes, and after the step's last round the
  // update.
  [[nodiscard]] double update_bytes(int layer, int own_round, bool ends_step) const;

 private:
  using Direction = std::deque<NetworkTransfer>;  // the first one moves

  void add(double now, Direction& direction, NetworkTransfer transfer) const;
  // Returns the number of nodes that compute such a round.
  [[nodiscard]] double nodes_with(int own_round) const;
  [[nodiscard]] LayerBytes bytes_of(int layer) const {
    return work_.layers.empty() ? LayerBytes{} : work_.layers[layer];
  }

  const RunWork& work_;
  const int num_rounds_;  // of a step, on all nodes
  Direction out_, in_;
};

}  // namespace rp
