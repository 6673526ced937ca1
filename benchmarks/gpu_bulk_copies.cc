// Measures how long copies over registered memory are best cut, and how much they delay other
// copies. Copies to and from the GPU are made in pieces of 2, 4, 8 and 16 MiB, of which 2, 3, 4 or
// 6 are under way at a time, in one direction alone and in both, without and with the host
// functions of a trace. Each is compared with the same copy uncut. The next piece is enqueued when
// a host function has reported that an earlier one has ended, as a worker does
// (docs/design/transfers.md). Then 16 MiB to the GPU and 4 KiB from it are timed: without other
// traffic, during copies in pieces of 4 MiB of which 2 are under way, and during copies that are
// not cut.
//
// Prints a line of JSON for each. Exit code 69 without a GPU.
//
//   gpu_bulk_copies [--mib N]     (default: 256 MiB per copy)
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "benchmarks/bulk_traffic.h"
#include "common/program_main.h"

namespace {

void print(const nlohmann::ordered_json& line) { std::cout << line.dump() << "\n" << std::flush; }

int measure(const std::vector<std::string>& arguments) {
  rp::BulkSettings settings;
  if (!arguments.empty()) {
    const int mib = arguments.size() == 2 && arguments[0] == "--mib" ? std::atoi(arguments[1].c_str()) : 0;
    if (mib < 16) throw rp::Error(rp::ExitCode::kUsage, "usage: gpu_bulk_copies [--mib N], N at least 16");
    settings.bytes = static_cast<std::uint64_t>(mib) << 20;
  }
  for (const rp::UrgentDelay& delay : rp::measure_urgent_delays(rp::cuda_driver(), settings)) {
    print({{"what", "delay"},
           {"traffic", delay.traffic},
           {"input_us", delay.input_us},
           {"longest_input_us", delay.longest_input_us},
           {"page_us", delay.page_us},
           {"longest_page_us", delay.longest_page_us}});
  }
  for (const rp::BulkSpeed& speed : rp::measure_bulk_speeds(rp::cuda_driver(), settings)) {
    print({{"what", "bulk"},
           {"direction", speed.direction},
           {"is_cut", speed.is_cut},
           {"mib", speed.pieces.bytes >> 20},
           {"under_way", speed.pieces.under_way},
           {"is_traced", speed.is_traced},
           {"gbs", speed.gbs}});
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  // As rp-launch does, so that a stream that waits does not hold up another one in the same
  // hardware queue.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  return rp::run_program("gpu_bulk_copies", [&] { return measure({argv + 1, argv + argc}); });
}
