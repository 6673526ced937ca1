// coordinator/exchange/plan_exchange.h
// Gives all nodes the same plans for their rounds with gradients: those of the first node
// (docs/design/several-nodes.md#nccl-between-gpus). Each plan is sent one round ahead, down a tree
// (nodes/node_tree.h), so nodes seldom wait for it.
//
// Owned by the Coordinator, one for each pipeline. One thread calls begin_round(), others may look.
// The network calls nothing of it after it has ended.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

#include "common/mutex.h"
#include "nodes/network.h"
#include "scheduler/plan.h"

namespace rp {

// Returns a plan with a fused stage or backward stages as one byte for each layer, and the plan of
// such bytes.
[[nodiscard]] std::vector<std::byte> bytes_of_plan(const Plan& plan, int num_layers);
[[nodiscard]] Plan plan_of_bytes(std::span<const std::byte> bytes);

class PlanExchange {
 public:
  // `on_plan`: called by the network's thread when a plan has arrived.
  PlanExchange(NodeNetwork& network, int pipeline, int num_layers, std::function<void()> on_plan);

  // Announces that this node computes its next round. `own`: on the first node, the plan for the round
  // after it, and for this one if it is the first.
  void begin_round(const Plan& own) RP_EXCLUDES(mutex_);
  // Returns whether the plan of that round is known.
  [[nodiscard]] bool has_plan() RP_EXCLUDES(mutex_);
  // Returns that plan. REQUIRES: has_plan(); called once for each round.
  [[nodiscard]] Plan take_plan() RP_EXCLUDES(mutex_);

 private:
  void send(const std::vector<std::byte>& plan);
  // Receives the next plan that is wanted, if there is one. One at a time, because they may not be
  // complete in the order in which they were sent.
  void receive() RP_REQUIRES(mutex_);
  void end_receive() RP_EXCLUDES(mutex_);

  NodeNetwork& network_;
  const NodeMessageTag tag_;
  const std::size_t num_layers_;
  const std::function<void()> on_plan_;
  const std::vector<int> children_;
  bool has_begun_ = false;
  Mutex mutex_;
  std::deque<Plan> plans_ RP_GUARDED_BY(mutex_);  // that are known and not taken
  int num_wanted_ RP_GUARDED_BY(mutex_) = 0;      // plans that are not known yet
  bool is_receiving_ RP_GUARDED_BY(mutex_) = false;
  std::vector<std::byte> received_;  // changed only while it is received
};

}  // namespace rp
