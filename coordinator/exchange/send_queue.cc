#include "coordinator/exchange/send_queue.h"

#include <utility>

#include "common/nodes.h"

namespace rp {

void SendQueue::send_gradient(LongMessage message) {
  MutexLock lock(mutex_);
  gradients_.push_back(std::move(message));
  begin();
}

void SendQueue::send_weights(const WeightsOrder& order, LongMessage message) {
  MutexLock lock(mutex_);
  weights_[order].push_back(std::move(message));
  begin();
}

void SendQueue::begin() {
  if (is_beginning_) return;
  is_beginning_ = true;
  while (std::optional<LongMessage> message = next()) {
    mutex_.unlock();
    network_.send(node_, message->tag, message->memory, std::move(message->done));
    mutex_.lock();
  }
  is_beginning_ = false;
}

std::optional<LongMessage> SendQueue::next() {
  if (!gradients_.empty() && num_gradients_ < kMessagesOnWay) {
    LongMessage message = std::move(gradients_.front());
    gradients_.pop_front();
    return counted(std::move(message), num_gradients_);
  }
  if (weights_.empty() || num_weights_ >= (num_gradients_ > 0 ? 1 : kMessagesOnWay)) return std::nullopt;
  const auto first = weights_.begin();
  LongMessage message = std::move(first->second.front());
  first->second.pop_front();
  if (first->second.empty()) weights_.erase(first);
  return counted(std::move(message), num_weights_);
}

LongMessage SendQueue::counted(LongMessage message, int& num_on_way) {
  ++num_on_way;
  message.done = [this, &num_on_way, done = std::move(message.done)] {
    {
      MutexLock lock(mutex_);
      --num_on_way;
      begin();
    }
    done();
  };
  return message;
}

}  // namespace rp
