// tests/nodes/relay.h
// Passes a token from each node to the next one, the last node to the first, only from functions that the network
// calls.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "nodes/network.h"

namespace rp::test {

// One node's part. The network must outlive it, and it must outlive the network's calls.
class Relay {
 public:
  Relay(NodeNetwork& network, int num_rounds)
      : network_(network), place_(network.place()), num_rounds_(num_rounds), left_(num_rounds) {}

  void start() {
    receive();
    if (place_.node == 0) send(1);
  }
  // Returns how often the token came when it was due. It carries the number of times that it was sent.
  [[nodiscard]] int num_arrived() const { return num_arrived_; }

 private:
  static constexpr NodeMessageTag kTag{.kind = NodeMessageKind::kProbe, .number = 77};

  void receive() {
    network_.receive((place_.node + place_.num_nodes - 1) % place_.num_nodes, kTag,
                     std::as_writable_bytes(std::span(&received_, 1)), [this] { arrive(); });
  }
  void arrive() {
    const int round = num_rounds_ - left_--;
    const int due = round * place_.num_nodes + (place_.node == 0 ? place_.num_nodes : place_.node);
    num_arrived_ += received_ == due ? 1 : 0;
    const int token = received_;
    if (left_ > 0) receive();
    if (left_ > 0 || place_.node > 0) send(token + 1);
  }
  void send(int token) {
    const auto memory = std::make_shared<int>(token);
    network_.send((place_.node + 1) % place_.num_nodes, kTag, std::as_bytes(std::span(memory.get(), 1)), [memory] {});
  }

  NodeNetwork& network_;
  const NodePlace place_;
  const int num_rounds_;
  // Changed only by functions that the network calls.
  int left_;
  int received_ = 0;
  int num_arrived_ = 0;
};

// Starts the token, leaves the network while it is on its way, and returns how often it came here when it was due.
inline int finish_during_relay(NodeNetwork& network, int num_rounds) {
  Relay relay(network, num_rounds);
  relay.start();
  network.finish();
  return relay.num_arrived();
}

}  // namespace rp::test
