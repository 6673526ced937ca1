// benchmarks/first_launches.h
// Times what a process launches for the first time, and again, while another stream waits for a
// word that is not written yet. This shows whether the driver waits for that stream before it loads
// a kernel or makes a handle. Part of gpu_first_launches.cc, which describes what is measured.
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
  double again_ms = 0;       // the same for the second launch
  bool was_held_up = false;  // the first launch did not end before the watchdog released the other stream
  bool was_held_up_again = false;
};

// Times the launches in this process, in this order. If `watch_s` is positive, another stream waits
// for a word during each launch, until the launch has ended or a watchdog writes the word after
// that many seconds; if it is 0, there is no such stream. Throws rp::Error: kNoResource if streams
// cannot wait for words, kHang if a launch does not end within a minute after the release.
[[nodiscard]] std::vector<FirstLaunchTime> time_first_launches(const CudaContext& context,
                                                               const std::vector<FirstLaunch>& launches,
                                                               double watch_s);

}  // namespace rp
