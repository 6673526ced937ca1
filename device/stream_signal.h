// device/stream_signal.h
// What one thread of a worker tells another one of its stream: a count, and for the last of its values the place of the stream
// that they stand for.
//
// One thread publishes, with one stream; one waits, for another stream. Where the device keeps streams in order by itself, the
// host's wait is over as soon as the work is enqueued. The device must outlive it.
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
  // `depth`: a value is published only once come_after() was called for the one that is `depth` below, or never will be.
  StreamSignal(Device& device, std::size_t depth) {
    for (std::size_t i = 0; i < depth; ++i) points_.push_back(device.make_point());
  }

  // `value` (rising, from 1) is behind everything enqueued on `stream`.
  void publish(std::uint64_t value, Stream& stream) {
    stream.record(*points_[value % points_.size()]);
    stream.announce(word_, value);
  }

  // Until come_after() may be called for `value`.
  [[nodiscard]] WaitResult wait_at_least(std::uint64_t value, const WaitLimits& limits) const {
    return word_.wait_at_least(value, limits);
  }
  // What is enqueued on `stream` from now on comes after `value`. REQUIRES: wait_at_least(value) said kReached.
  void come_after(std::uint64_t value, Stream& stream) const { stream.come_after(*points_[value % points_.size()]); }

  // Wakes who waits, so that it looks at its `stop`.
  void wake() const { word_.wake(); }

 private:
  SequenceWord word_{};                               // writer: the publishing thread, or its stream
  std::vector<std::unique_ptr<StreamPoint>> points_;  // of value v at v mod depth
};

}  // namespace rp
