// benchmarks/host_function_speed.h
// Measures how fast a driver calls functions of the host in a stream's order. Part of
// gpu_host_functions.cc, which describes what is measured.
#pragma once

#include <vector>

#include "cuda/context.h"

namespace rp {

struct HostFunctionSettings {
  int num_latencies = 500;
  int num_streams = 10;      // as many as a worker has: five, each with a second one
  int calls_of_each = 2000;  // calls for each figure of calls per second
};

struct HostFunctionSpeed {
  // From the call of the driver to the function's first line, on an idle stream; ascending.
  std::vector<double> latencies_us{};
  double calls_per_s_on_one = 0;      // enqueued one after the other, until the last one has run
  double calls_per_s_on_several = 0;  // in turns on num_streams, the total of all
};

// Throws rp::Error: kHang if the driver does not call a function within 60 s, or the driver's
// error.
[[nodiscard]] HostFunctionSpeed measure_host_functions(const CudaContext& context,
                                                       const HostFunctionSettings& settings);

}  // namespace rp
