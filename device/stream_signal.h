// device/stream_signal.h
// Lets one stream of a worker wait for another, by a counter that a thread of the worker publishes: the last values of
// the counter each have an event of the publishing stream.
//
// One thread publishes, with one stream; one thread waits, for another stream. Where the device keeps the order of
// streams by itself, the host's wait ends as soon as the work is enqueued. The device must outlive it.
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
  // `depth`: a value is published only once enqueue_wait() was called for the one that is `depth` below, or never will
  // be.
  StreamSignal(Device& device, std::size_t depth) {
    for (std::size_t i = 0; i < depth; ++i) events_.push_back(device.make_event());
  }

  // `value` (rising, from 1) is behind everything enqueued on `stream`.
  void publish(std::uint64_t value, Stream& stream) {
    stream.record(*events_[value % events_.size()]);
    stream.publish_waitable(word_, value);
  }

  // Until enqueue_wait() may be called for `value`.
  [[nodiscard]] WaitResult wait_at_least(std::uint64_t value, const WaitLimits& limits) const {
    return word_.wait_at_least(value, limits);
  }
  // What is enqueued on `stream` from now on comes after `value`. REQUIRES: wait_at_least(value) said kReached.
  void enqueue_wait(std::uint64_t value, Stream& stream) const { stream.wait_event(*events_[value % events_.size()]); }

  // Wakes who waits, so that it looks at its `stop`.
  void wake() const { word_.wake(); }

 private:
  SequenceWord word_{};                         // writer: the publishing thread, or its stream
  std::vector<std::unique_ptr<Event>> events_;  // of value v at v mod depth
};

}  // namespace rp
