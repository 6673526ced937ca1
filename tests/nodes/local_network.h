// tests/nodes/local_network.h
// Connects nodes that are threads of one process, for tests: messages arrive late, and in any order
// that NodeNetwork allows.
//
// finish() of a node returns when all nodes have called it, or stop(), and nothing moves any more. If
// all have called finish(), the destructor fails the test for each message that was only sent or only
// awaited. Over MPI the first would not be noticed, and finish() would wait for the second for ever.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "nodes/network.h"
#include "tests/nodes/message_count.h"

namespace rp::test {

struct LocalNetworkSettings {
  unsigned seed = 1;
  std::size_t eager_bytes = 256;  // sends of at most so many bytes are complete before they are received
};

class LocalNetwork {
 public:
  LocalNetwork(int num_nodes, const LocalNetworkSettings& settings);
  ~LocalNetwork();
  LocalNetwork(const LocalNetwork&) = delete;
  LocalNetwork& operator=(const LocalNetwork&) = delete;

  [[nodiscard]] NodeNetwork& node(int node);
  // Returns what a node has sent to all others.
  [[nodiscard]] MessageCount sent(int node);
  // Returns how many nodes have called finish().
  [[nodiscard]] int num_finishing();

 private:
  class Node;
  struct Channel {
    int from = 0;
    int to = 0;
    NodeMessageTag tag{};
    auto operator<=>(const Channel&) const = default;
  };
  struct Send {
    std::span<const std::byte> memory;
    std::shared_ptr<std::vector<std::byte>> copy;  // of an eager message
    NodeNetwork::Done done;                        // empty for an eager message
  };
  struct Receive {
    std::span<std::byte> memory;
    NodeNetwork::Done done;
  };
  struct Match {
    Channel channel;
    Send send;
    Receive receive;
  };

  void begin_send(const Channel& channel, std::span<const std::byte> memory, NodeNetwork::Done done);
  void begin_receive(const Channel& channel, std::span<std::byte> memory, NodeNetwork::Done done);
  void match(const Channel& channel) RP_REQUIRES(mutex_);
  void deliver();
  void finish();
  // Notes that a node has stopped that had not called finish().
  void note_stop();
  void notify();
  // Returns whether no message is being delivered, and no function is being called or about to be.
  [[nodiscard]] bool is_quiet() RP_REQUIRES(mutex_);
  void expect_all_matched() RP_REQUIRES(mutex_);

  const LocalNetworkSettings settings_;
  std::vector<std::unique_ptr<Node>> nodes_;
  Mutex mutex_;
  CondVar changed_;
  std::map<Channel, std::deque<Send>> sends_ RP_GUARDED_BY(mutex_);
  std::map<Channel, std::deque<Receive>> receives_ RP_GUARDED_BY(mutex_);
  std::vector<Match> matches_ RP_GUARDED_BY(mutex_);
  std::vector<MessageCount> sent_ RP_GUARDED_BY(mutex_);
  std::size_t num_finishing_ RP_GUARDED_BY(mutex_) = 0;
  std::size_t num_stopped_ RP_GUARDED_BY(mutex_) = 0;  // before they have finished
  bool is_delivering_ RP_GUARDED_BY(mutex_) = false;
  bool has_ended_ RP_GUARDED_BY(mutex_) = false;
  std::thread wire_;
};

}  // namespace rp::test
