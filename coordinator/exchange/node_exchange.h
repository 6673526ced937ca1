// coordinator/exchange/node_exchange.h
// Moves the gradients and weights of one pipeline between this node and the others: gradients to
// the nodes that own their elements, new weights from their owners to all nodes
// (docs/design/several-nodes.md).
//
// Gradients of other nodes are received into a few buffers for each node, in the order in which
// that node commits them: the rounds in the order of their calls, in each the layers from the last
// to the first. Each buffer is used again once its owner gives it back. All other messages are sent
// from the store and received in place. Long messages are divided. With Reduce::kNccl, the workers
// exchange the gradients, and this class only the rest.
//
// Owned by the Updates, which call it with their mutex held, and look for events before they wait.
// The network's thread notes events, too, and then calls `wake`. The Store and the network must outlive this object;
// the network calls nothing of it after it has ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "common/mutex.h"
#include "coordinator/exchange/send_queue.h"
#include "hoststore/store.h"
#include "nodes/network.h"

namespace rp {

// A part of another node's gradient, in a buffer of the NodeExchange.
struct ReceivedGradient {
  Version version{};        // of the weights that the step makes
  std::uint64_t round = 0;  // within the step
  UseId use{};
  ElementRange elements{};  // of the weight group
  std::byte* data = nullptr;
  int node = 0;  // that has sent it
};
// All nodes have received what they own of a gradient of this node.
struct SentGradient {
  UseId use{};
};
// The other nodes have received the part of a group's new weights that this node owns.
struct SentWeights {
  GroupId group{};
  Version version{};
};
// The parts of a group's new weights that other nodes own are there.
struct ReceivedWeights {
  GroupId group{};
  Version version{};
};
// The sums of squares of all other nodes are there, and they have those of this node.
struct ReceivedSquares {};
using ExchangeEvent = std::variant<ReceivedGradient, SentGradient, SentWeights, ReceivedWeights, ReceivedSquares>;

class NodeExchange {
 public:
  // `wake`: called by the network's thread when there is a new event.
  NodeExchange(Store& store, std::uint32_t pipeline, NodeNetwork& network, std::function<void()> wake);

  // Notes that another node computes this round of a step, whose gradients will arrive. REQUIRES:
  // called in the order of the rounds.
  void expect_gradients(int node, Version version, std::uint64_t round);
  // Declares that the data of this event was used.
  void give_back(const ReceivedGradient& gradient);

  // Each is followed by an event.
  void send_gradient(UseId use);
  void send_weights(GroupId group, Version version);
  // REQUIRES: no thread or process uses this working copy, except where this node owns it.
  void receive_weights(GroupId group, Version version);
  // `of_node`: returns the memory of a node's sums. It must exist until the event, and those of this
  // node must not change.
  void exchange_squares(const std::function<std::span<double>(int node)>& of_node);

  // Returns what has happened since the last call.
  [[nodiscard]] std::vector<ExchangeEvent> take_events();

 private:
  struct ExpectedRound {
    Version version{};
    std::uint64_t round = 0;
  };
  // What another node will send.
  struct Source {
    std::deque<ExpectedRound> rounds;
    std::size_t next_use = 0;        // of the first round: an index into order_of_uses_
    std::uint64_t next_element = 0;  // of this use, counted from the first element that this node owns
    std::vector<std::byte*> free_buffers;
  };

  void note(const ExchangeEvent& event);
  void note_and_wake(const ExchangeEvent& event);
  // Returns a function that notes the event when it is called for the last of `num_calls` times.
  [[nodiscard]] NodeNetwork::Done after(std::size_t num_calls, const ExchangeEvent& event);
  void receive_gradients(int node);
  [[nodiscard]] GroupId group_of(UseId use) const { return store_.catalogue().uses()[use].group; }
  [[nodiscard]] const WeightGroupRecord& record_of(GroupId group) const {
    return store_.catalogue().weight_groups()[group];
  }
  template <typename Byte>
  struct Message {
    int node = 0;
    std::span<Byte> memory;
  };
  // Appends the messages from or to `node` that contain what `owner` owns of `whole`, a copy or
  // gradient of the group.
  template <typename Byte>
  void append(std::vector<Message<Byte>>& messages, int node, GroupId group, std::span<Byte> whole, int owner) const;
  // These hand all messages over, whose end is the event.
  template <typename Send>
  void send(NodeMessageTag tag, const std::vector<Message<const std::byte>>& messages, const ExchangeEvent& event,
            const Send& send);
  void receive(NodeMessageTag tag, const std::vector<Message<std::byte>>& messages, const ExchangeEvent& event);
  [[nodiscard]] std::vector<int> other_nodes() const;

  Store& store_;
  const std::uint32_t pipeline_;
  NodeNetwork& network_;
  const std::function<void()> wake_;
  std::vector<UseId> order_of_uses_;  // in the order of commits; without groups of which this node owns nothing
  std::vector<std::unique_ptr<std::byte[]>> buffers_;
  std::vector<Source> sources_;                     // by node, as are `queues_`
  std::vector<std::unique_ptr<SendQueue>> queues_;  // null for this node

  Mutex mutex_;  // taken after that of the Updates
  std::vector<ExchangeEvent> events_ RP_GUARDED_BY(mutex_);
};

}  // namespace rp
