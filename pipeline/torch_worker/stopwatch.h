// pipeline/torch_worker/stopwatch.h
// Measures the time of what a TorchDevice computes, with the device's own clock, and writes it to a
// page of results.
#pragma once

#include <cstdint>

#include "pipeline/torch_worker/torch_device.h"
#include "roundpipe/error.h"

namespace rp {

// Adds the device's time to a number in a page, at the end of what is timed. A device that has
// failed accepts no more work and throws. The failure was already thrown where other work was
// enqueued, and that exception may be in flight.
inline void end_time(TorchDevice& device, std::int64_t* total) noexcept {
  try {
    device.add_time(total);
  } catch (const Error&) {  // the time will not be read
  }
}

// Adds the time from its construction to its destruction to a number in a page.
class Stopwatch {
 public:
  Stopwatch(TorchDevice& device, std::int64_t& total) : device_(device), total_(total) {
    device_.subtract_time(&total_);
  }
  ~Stopwatch() { end_time(device_, &total_); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  TorchDevice& device_;
  std::int64_t& total_;
};

// Writes the device's time at its construction and at its destruction.
class Span {
 public:
  Span(TorchDevice& device, std::int64_t* times) : device_(device), times_(times) { device_.add_time(times_); }
  ~Span() { end_time(device_, times_ + 1); }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  TorchDevice& device_;
  std::int64_t* const times_;
};

}  // namespace rp
