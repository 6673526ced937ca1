// Measures the registration of a host store with the driver as workers do it: a shared mapping in
// pieces of 256 MiB, one half of it writable, the other read-only, by 1, 2, 4 and 8 processes at
// the same time. Attempts that fail are counted and repeated, since the driver may refuse pages
// that the kernel is moving. At the same time another thread of each process launches kernels,
// copies pages and maps memory. The longest call of each kind is compared with the longest one in
// the half second before.
//
// Prints a line of JSON for each number of processes. Exit code 69 without a GPU.
//
//   gpu_registration [--mib N]     (default: 4096 MiB of memory)
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "benchmarks/registration.h"
#include "common/program_main.h"

namespace {

nlohmann::ordered_json longest_json(const rp::LongestCalls& calls) {
  const auto ms = [](std::int64_t ns) { return static_cast<double>(ns) / 1e6; };
  return {{"launch_ms", ms(calls.launch_ns)}, {"copy_ms", ms(calls.copy_ns)}, {"mmap_ms", ms(calls.mmap_ns)}};
}

int measure(const std::vector<std::string>& arguments) {
  rp::RegistrationSettings settings;
  if (!arguments.empty()) {
    const int mib = arguments.size() == 2 && arguments[0] == "--mib" ? std::atoi(arguments[1].c_str()) : 0;
    if (mib <= 0) throw rp::Error(rp::ExitCode::kUsage, "usage: gpu_registration [--mib N]");
    settings.bytes = static_cast<std::uint64_t>(mib) << 20;
  }
  for (const int processes : {1, 2, 4, 8}) {
    const rp::RegistrationFigures figures = rp::measure_registration(rp::cuda_driver, processes, settings);
    const double seconds = static_cast<double>(figures.slowest_ns) / 1e9;
    const nlohmann::ordered_json line = {{"processes", processes},
                                         {"s_per_gib", seconds * 1073741824.0 / static_cast<double>(settings.bytes)},
                                         {"failed_attempts", figures.failed_attempts},
                                         {"given_up", figures.given_up},
                                         {"idle", longest_json(figures.idle)},
                                         {"busy", longest_json(figures.busy)}};
    std::cout << line.dump() << "\n" << std::flush;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return rp::run_program("gpu_registration", [&] { return measure({argv + 1, argv + argc}); });
}
