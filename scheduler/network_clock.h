// scheduler/network_clock.h
// Computes when the new weights of a step have arrived from the other nodes of a run, for searches: the rules of
// scheduler/simulation/simulated_network.h, with copies and updates that take no time. Times are in ms.
#pragma once

#include <vector>

#include "scheduler/plan.h"

namespace rp {

// How long the messages of one layer are on a node's link to the other nodes.
struct LayerMessages {
  double gradient = 0;  // of one round; 0: the layer is frozen
  double weights = 0;   // of a step
};

// The network between the nodes of a run, as it affects plans.
struct PlanNetwork {
  std::vector<LayerMessages> layers{};  // by layer, the head last; empty: nothing waits for other nodes
  double latency = 0;                   // from the end of a message's bytes until the receiver knows of it
};

// A link that moves gradients in the order in which they are committed, and in the time between them weights: those of
// the step before first, and of one step those of the first layers first. Gradients of one round come from the last
// layer to the first, so the weights that wait are a stack.
class NetworkClock {
 public:
  NetworkClock(PlanNetwork network, bool asynchronous);

  // Goes back to time 0 and a free link.
  void restart();
  // Moves the gradients of these layers, which are committed at `now`. REQUIRES: `now` is not before that of the last
  // call. `ends_step`: the round is the last one of its step, so the layers are updated and their weights follow.
  void commit(const LayerRange& layers, double now, bool ends_step);
  // Ends a step. Returns the times, by layer, at which the weights are there that the next step computes with: those
  // of this step, or if steps are asynchronous of the step before. Valid until the next call.
  [[nodiscard]] const std::vector<double>& end_step();

 private:
  struct Weights {
    int layer = 0;
    double known = 0;  // the time at which the layer is updated
    double left = 0;   // ms on the link
  };
  struct Step {
    std::vector<Weights> waiting{};  // the last one goes first
    std::vector<double> arrivals{};  // by layer
  };
  // Moves waiting weights as long as the link is free, until it is needed at `until`.
  void move_weights(Step& step, double until);

  const PlanNetwork network_;
  const bool asynchronous_;
  double link_free_ = 0;
  Step before_, present_;  // before_: if steps are asynchronous
};

}  // namespace rp
