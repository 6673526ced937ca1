// Measures how fast a GPU copies to and from the host store: from parameters to the GPU and from
// the GPU to gradients, over mappings that are registered as a worker registers them
// (cuda/pinned_store.h) and in its pieces of 4 MiB (cuda/cuda_stream.h), in one direction alone and
// in both. For comparison it measures plain pinned memory (cuMemHostAlloc, one cuMemcpyAsync), and
// copies through the pinned buffer that is used for unregistered memory. The kinds take turns; the
// figures are medians by events of the GPU.
//
// Prints a line of JSON for each. `ratio` is the store's share of plain pinned memory's bandwidth;
// docs/gpu-status.md requires 0.95 or more. Exit code 69 without a GPU.
//
//   gpu_store_bandwidth [--mib N] [--rounds N] [--store shm|memfd]     (defaults: 512 MiB, 9 rounds, the best store)
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "benchmarks/store_bandwidth.h"
#include "common/program_main.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace {

int measure(const std::vector<std::string>& arguments) {
  rp::StoreBandwidthSettings settings;
  for (std::size_t i = 0; i < arguments.size(); i += 2) {
    const std::string value = i + 1 < arguments.size() ? arguments[i + 1] : "";
    const int number = std::atoi(value.c_str());
    if (arguments[i] == "--mib" && number > 0) {
      settings.bytes = static_cast<std::uint64_t>(number) << 20;
    } else if (arguments[i] == "--rounds" && number > 0) {
      settings.rounds = number;
    } else if (arguments[i] == "--store" && (value == "shm" || value == "memfd")) {
      settings.backing = value;
    } else {
      throw rp::Error(rp::ExitCode::kUsage, "usage: gpu_store_bandwidth [--mib N] [--rounds N] [--store shm|memfd]");
    }
  }
  for (const rp::StoreBandwidth& figure : rp::measure_store_bandwidth(rp::cuda_driver(), settings)) {
    nlohmann::ordered_json line = {{"what", figure.what},
                                   {"store", figure.store},
                                   {"store_gbs", figure.store_gbs},
                                   {"pinned_gbs", figure.pinned_gbs},
                                   {"ratio", figure.store_gbs / figure.pinned_gbs}};
    if (figure.staged_gbs > 0) line["staged_gbs"] = figure.staged_gbs;
    std::cout << line.dump() << "\n" << std::flush;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return rp::run_program("gpu_store_bandwidth", [&] { return measure({argv + 1, argv + argc}); });
}
