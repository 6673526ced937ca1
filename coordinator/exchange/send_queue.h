// coordinator/exchange/send_queue.h
// Sends the gradients and weights of one pipeline to one other node, few messages at a time.
//
// The connection between two nodes also carries the answers to messages of the other direction. They wait behind all
// that is being sent, so both directions slow down if that is much (docs/design/several-nodes.md). What is not being
// sent yet can still be overtaken by something more urgent: gradients go first, in their order, since the whole step
// waits for the last one of them. Weights follow in the order in which the next rounds need them. While there are
// gradients, one message of weights is on its way, and never none: the other node may need weights before it takes
// gradients.
//
// Owned by a NodeExchange. Any thread may call. The network, which must outlive this object, calls nothing of it after
// it has ended.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>

#include "common/mutex.h"
#include "hoststore/catalogue.h"
#include "nodes/network.h"

namespace rp {

// When weights are needed: those of earlier versions first, then those of earlier layers.
struct WeightsOrder {
  Version version{};
  UseId first_use{};
  auto operator<=>(const WeightsOrder&) const = default;
};

struct LongMessage {
  NodeMessageTag tag{};
  std::span<const std::byte> memory;
  NodeNetwork::Done done;
};

class SendQueue {
 public:
  SendQueue(NodeNetwork& network, int node) : network_(network), node_(node) {}
  SendQueue(const SendQueue&) = delete;
  SendQueue& operator=(const SendQueue&) = delete;

  void send_gradient(LongMessage message);
  void send_weights(const WeightsOrder& order, LongMessage message);

 private:
  // Sends what may be on its way now. If another thread does so already, that one goes on with it, so that messages
  // begin in order.
  void begin() RP_REQUIRES(mutex_);
  // Returns the next message to send, if one may be.
  [[nodiscard]] std::optional<LongMessage> next() RP_REQUIRES(mutex_);
  // Counts a message as on its way, and returns it with a function that ends this.
  [[nodiscard]] LongMessage counted(LongMessage message, int& num_on_way) RP_REQUIRES(mutex_);

  NodeNetwork& network_;
  const int node_;
  Mutex mutex_;
  std::deque<LongMessage> gradients_ RP_GUARDED_BY(mutex_);
  std::map<WeightsOrder, std::deque<LongMessage>> weights_ RP_GUARDED_BY(mutex_);
  int num_gradients_ RP_GUARDED_BY(mutex_) = 0;  // on their way
  int num_weights_ RP_GUARDED_BY(mutex_) = 0;
  bool is_beginning_ RP_GUARDED_BY(mutex_) = false;
};

}  // namespace rp
