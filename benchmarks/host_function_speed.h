// benchmarks/host_function_speed.h
// Measures what a driver takes to call functions of the host in a stream's order. Of gpu_host_functions.cc, which says
// what is measured.
#pragma once

#include <vector>

#include "cuda/context.h"

namespace rp {

struct HostFunctionSettings {
  int num_latencies = 500;
  int num_streams = 10;      // as a worker has: five, each with one beside it
  int calls_of_each = 2000;  // for the calls per second
};

struct HostFunctionSpeed {
  std::vector<double>
      latencies_us{};  // from the call of the driver to the function's first line, on an idle stream; ascending
  double calls_per_s_on_one = 0;      // enqueued one after the other, until the last one has run
  double calls_per_s_on_several = 0;  // in turns on num_streams, of all of them
};

// Throws rp::Error: kHang if the driver does not call a function within 60 s, or what the driver says.
[[nodiscard]] HostFunctionSpeed measure_host_functions(const CudaContext& context,
                                                       const HostFunctionSettings& settings);

}  // namespace rp
