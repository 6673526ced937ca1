// scheduler/simulation/simulated_network.h
// Simulates a node's link to the other nodes in a simulated run: what is sent and received when a
// gradient is committed and when a layer is updated (docs/design/several-nodes.md). Virtual time, in
// ms.
//
// All nodes are equal, and do the same at the same time: when this node sends a gradient to its
// owners, the other nodes send theirs, so what it receives begins to move at the same moment. Each
// direction of the link moves one transfer at a time: gradients in their order, then the weights that
// are needed first (coordinator/exchange/send_queue.h). Something more urgent interrupts a transfer. So
// the link is simulated without knowing how many other nodes there are.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <vector>

#include "scheduler/simulation/machine.h"
#include "scheduler/simulation/run_record.h"

namespace rp {

// What this node sends to all other nodes, or receives from them, of one layer, or a part of it.
struct NetworkTransfer {
  SpanKind kind = SpanKind::kSendGradient;
  std::int64_t slot = 0;
  int layer = 0;
  double bytes = 0;
  double start = 0;
  double end = 0;
  bool is_last = true;  // false: it was interrupted, and another part follows
};

class SimulatedNetwork {
 public:
  // `work` must outlive this object.
  explicit SimulatedNetwork(const RunWork& work);

  [[nodiscard]] bool has_others() const { return work_.nodes.num_nodes > 1; }

  // Begin the transfers that follow a commit of a layer's gradient, and the update of what this node
  // owns of the layer. `own_round`: counts this node's rounds of the step. REQUIRES: has_others().
  void send_gradient(double now, std::int64_t slot, int layer, int own_round);
  void send_weights(double now, std::int64_t slot, int layer, int step);

  // Returns the time at which the next transfer ends.
  [[nodiscard]] double next_event() const;
  // Removes and returns the transfers that have ended.
  [[nodiscard]] std::vector<NetworkTransfer> take_ended(double now);

  // Returns the bytes through host memory that this node's update of a layer takes at the end of an
  // own round: the additions of the gradients of all nodes, and after the step's last round the
  // update.
  [[nodiscard]] double update_bytes(int layer, int own_round, bool ends_step) const;

 private:
  // Gradients have the order {}: they go first.
  struct Order {
    bool is_weights = false;
    int step = 0;
    int layer = 0;
    auto operator<=>(const Order&) const = default;
  };
  struct Direction {
    std::multimap<Order, NetworkTransfer> waiting;  // the first one moves
    std::vector<NetworkTransfer> ended;
  };

  void add(double now, Direction& direction, const Order& order, const NetworkTransfer& transfer) const;
  void begin_first(double now, Direction& direction) const;
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
