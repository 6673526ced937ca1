// benchmarks/first_launches.h
// Times what a process launches for the first time, and once more, while a stream beside it waits for something that
// has not happened: whether the driver waits for that stream before it loads a kernel or makes a handle. Of
// gpu_first_launches.cc, which says what is measured.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cuda/context.h"

namespace rp {

struct FirstLaunch {
  std::string what;
  std::function<void(CUstream)> enqueue;
};

struct FirstLaunchTime {
  std::string what{};
  double first_ms = 0;       // from the call to the end of what was launched
  double again_ms = 0;       // the same once more
  bool was_held_up = false;  // the first did not end before the watchdog let the other stream go
  bool was_held_up_again = false;
};

// In this process, in this order. With `watch_s` another stream waits for a word during each launch, until that has
// ended or a watchdog writes the word after so many seconds; with 0 there is no such stream. Throws rp::Error:
// kNoResource where streams cannot wait for words, kHang if a launch does not end within a minute after it was let go.
[[nodiscard]] std::vector<FirstLaunchTime> time_first_launches(const CudaContext& context,
                                                               const std::vector<FirstLaunch>& launches,
                                                               double watch_s);

}  // namespace rp
