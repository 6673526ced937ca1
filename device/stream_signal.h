// device/stream_signal.h
// Lets one stream of a worker wait for another, by means of a counter that a thread of the worker
// publishes. Each of the last values of the counter has an event of the publishing stream.
//
// One thread publishes, with one stream; one thread waits, for another stream. If the device
// itself keeps the order of its streams, the host's wait ends as soon as the work is enqueued. The
// device must outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"
#include "hoststore/sequence_word.h"

namespace rp {

class StreamSignal {
 public:
  // A value may be published only if enqueue_wait() has been called for the value that is lower by
  // `depth`, or never will be.
  StreamSignal(Device& device, std::size_t depth) {
    for (std::size_t i = 0; i < depth; ++i) events_.push_back(device.make_event());
  }

  // Announces that everything enqueued on `stream` so far belongs to `value`. Values increase, from
  // 1.
  void publish(std::uint64_t value, Stream& stream) {
    stream.record(*events_[value % events_.size()]);
    stream.publish_waitable(word_, value);
  }

  // Blocks until enqueue_wait() may be called for `value`.
  [[nodiscard]] WaitResult wait_at_least(std::uint64_t value, const WaitLimits& limits) const {
    return word_.wait_at_least(value, limits);
  }
  // Makes everything that is enqueued on `stream` from now on run after the work of `value`.
  // REQUIRES: wait_at_least(value) returned kReached.
  void enqueue_wait(std::uint64_t value, Stream& stream) const { stream.wait_event(*events_[value % events_.size()]); }

  // Wakes the waiting thread, so that it checks its `stop` flag.
  void wake() const { word_.wake(); }

 private:
  SequenceWord word_{};                         // writer: the publishing thread, or its stream
  std::vector<std::unique_ptr<Event>> events_;  // the event of value v is at v mod depth
};

}  // namespace rp
