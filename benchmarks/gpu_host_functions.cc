// Measures the host functions by which the GPU's progress is reported to the host
// (cuda/host_calls.h): the time from the driver's call to the function's first line on an idle
// stream, and how many the driver calls per second on one stream and on ten streams in turns.
//
// Prints a line of JSON. Exit code 69 without a GPU.
//
//   gpu_host_functions
#include <cstdlib>
#include <iostream>

#include <nlohmann/json.hpp>

#include "benchmarks/host_function_speed.h"
#include "common/program_main.h"

namespace {

int measure(int argc) {
  if (argc > 1) throw rp::Error(rp::ExitCode::kUsage, "usage: gpu_host_functions");
  const rp::CudaContext context = rp::CudaContext::open(rp::cuda_driver(), "");
  const rp::HostFunctionSettings settings;
  const rp::HostFunctionSpeed speed = rp::measure_host_functions(context, settings);
  const std::vector<double>& us = speed.latencies_us;
  const nlohmann::ordered_json line = {
      {"what", "host_functions"},           {"median_us", us[us.size() / 2]},
      {"p99_us", us[us.size() * 99 / 100]}, {"calls_per_s_on_one", speed.calls_per_s_on_one},
      {"streams", settings.num_streams},    {"calls_per_s_on_several", speed.calls_per_s_on_several}};
  std::cout << line.dump() << "\n" << std::flush;
  return 0;
}

}  // namespace

int main(int argc, char**) {
  // As rp-launch does, since streams that share a hardware queue would wait for each other.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  return rp::run_program("gpu_host_functions", [&] { return measure(argc); });
}
