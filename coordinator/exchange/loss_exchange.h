// coordinator/exchange/loss_exchange.h
// Sends the losses of the rounds that this node computes to the other nodes, and receives theirs.
//
// Owned by the Coordinator. Any thread may call. The network calls nothing of it after it has ended.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "nodes/network.h"

namespace rp {

class LossExchange {
 public:
  // `on_done`: called by the network's thread when a message is complete.
  LossExchange(NodeNetwork& network, std::function<void()> on_done) : network_(network), on_done_(std::move(on_done)) {}

  // Sends the losses of a round of this node. REQUIRES: called in the order of the pipeline's rounds.
  void send(int pipeline, const std::vector<double>& losses);

  // Receives the losses of the next round of another node. `take` is called before `on_done`, by the
  // network's thread. REQUIRES: as for send().
  void receive(int node, int pipeline, std::function<void(std::vector<double> losses)> take);

  // Returns true if no message is on its way.
  [[nodiscard]] bool is_idle() const { return num_messages_.load() == 0; }

 private:
  void end_message();

  NodeNetwork& network_;
  const std::function<void()> on_done_;
  std::atomic<int> num_messages_{0};
};

}  // namespace rp
