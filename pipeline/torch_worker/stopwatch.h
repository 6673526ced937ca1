// pipeline/torch_worker/stopwatch.h
// Times of what a TorchDevice computes, by its own clock, into a page of results.
#pragma once

#include <cstdint>

#include "pipeline/torch_worker/torch_device.h"
#include "roundpipe/error.h"

namespace rp {

// Adds the device's time to a number in a page, at the end of what is timed. A device that has failed, and takes no
// more work, has told so where it was given some, and an exception of that may be on its way.
inline void end_time(TorchDevice& device, std::int64_t* total) noexcept {
  try {
    device.add_time(total);
  } catch (const Error&) {  // nobody will read the time
  }
}

// Adds the device's time until its end to a number in a page.
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

// Writes the device's time at its begin and its end.
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
