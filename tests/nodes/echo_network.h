// tests/nodes/echo_network.h
// The network of one node of a run whose nodes all send the same, without the others: what this node
// sends to another one with a tag is what it receives from that one. So the code of one of a
// thousand nodes runs in one thread, and its messages are counted.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "nodes/network.h"
#include "tests/nodes/message_count.h"

namespace rp::test {

// Returns the messages that contain what a node owns of a weight group.
inline MessageCount pieces_of(std::uint64_t num_owned, std::uint64_t element_bytes) {
  const std::uint64_t longest = message_elements(element_bytes);
  return {.messages = (num_owned + longest - 1) / longest, .bytes = num_owned * element_bytes};
}

class EchoNetwork : public NodeNetwork {
 public:
  explicit EchoNetwork(NodePlace place) : place_(place) {}

  // Returns what this node has sent of a kind.
  [[nodiscard]] MessageCount sent(NodeMessageKind kind) { return sent_[kind]; }

  [[nodiscard]] NodePlace place() const override { return place_; }
  void send(int to, NodeMessageTag tag, std::span<const std::byte> memory, Done done) override {
    ++sent_[tag.kind].messages;
    sent_[tag.kind].bytes += memory.size();
    Channel& channel = channels_[{to, tag}];
    channel.sent.emplace_back(memory.begin(), memory.end());
    done();
    echo(channel);
  }
  void receive(int from, NodeMessageTag tag, std::span<std::byte> memory, Done done) override {
    Channel& channel = channels_[{from, tag}];
    channel.received.emplace_back(memory, std::move(done));
    echo(channel);
  }
  void finish() override {}
  void stop() override {}

 private:
  struct Channel {
    std::deque<std::vector<std::byte>> sent;
    std::deque<std::pair<std::span<std::byte>, Done>> received;
  };

  static void echo(Channel& channel) {
    if (channel.sent.empty() || channel.received.empty()) return;
    const std::vector<std::byte> message = std::move(channel.sent.front());
    const auto [memory, done] = channel.received.front();
    channel.sent.pop_front();
    channel.received.pop_front();
    std::copy_n(message.begin(), std::min(message.size(), memory.size()), memory.begin());
    done();
  }

  const NodePlace place_;
  std::map<NodeMessageKind, MessageCount> sent_;
  std::map<std::pair<int, NodeMessageTag>, Channel> channels_;
};

}  // namespace rp::test
