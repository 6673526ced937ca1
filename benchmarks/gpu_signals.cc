// Compares the ways of waiting for another process's GPU work (docs/design/signals.md). Two
// processes use one GPU: one downloads 8 MiB into the host store and signals, the other waits and
// uploads them. The latency is the time from a host function after the download to one before the
// upload. Both run in a second stream in parallel, so their own delays cancel out, except for their
// jitter. The ways are host functions and futexes (`host`), stream memory operations (`words`) and
// CUDA IPC events (`events`). `polling`: the bandwidth of uploads while another stream waits for a
// word of the host's memory, and without that, in turns.
//
// Prints a line of JSON for each. Exit code 69 without a GPU.
//
//   gpu_signals [--rounds N] [--mib N]     (defaults: 400 downloads, of 8 MiB)
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "benchmarks/forked.h"
#include "benchmarks/signal_latency.h"
#include "common/program_main.h"
#include "common/text.h"

namespace {

constexpr std::uint64_t kPolledBytes = std::uint64_t{256} << 20;

rp::SignalSettings settings_of(const std::vector<std::string>& arguments) {
  rp::SignalSettings settings;
  for (std::size_t i = 0; i < arguments.size(); i += 2) {
    const int number = i + 1 < arguments.size() ? std::atoi(arguments[i + 1].c_str()) : 0;
    if (arguments[i] == "--rounds" && number >= 50 && number <= 4096) {
      settings.rounds = number;
    } else if (arguments[i] == "--mib" && number > 0 && number <= 1024) {
      settings.bytes = static_cast<std::uint64_t>(number) << 20;
    } else {
      throw rp::Error(rp::ExitCode::kUsage, "usage: gpu_signals [--rounds 50..4096] [--mib 1..1024]");
    }
  }
  return settings;
}

void print(const nlohmann::ordered_json& line) { std::cout << line.dump() << "\n" << std::flush; }

void print_polling() {
  const rp::PollingCost cost = rp::measure_polling(rp::cuda_driver(), kPolledBytes, 9);
  print({{"what", "polling"},
         {"with_gbs", cost.with_gbs},
         {"without_gbs", cost.without_gbs},
         {"ratio", cost.with_gbs / cost.without_gbs}});
}

int measure(const std::vector<std::string>& arguments) {
  const rp::SignalSettings settings = settings_of(arguments);
  // This runs first, in a process of its own, and reports what is missing if there is no GPU.
  if (const int code = rp::Forked(print_polling).join(rp::Deadline::after_seconds(settings.timeout_s)); code != 0)
    return code;
  using rp::SignalKind;
  for (const auto& [name, kind] :
       {std::pair{"host", SignalKind::kHost}, {"words", SignalKind::kWords}, {"events", SignalKind::kEvents}}) {
    std::vector<double> us = rp::measure_latencies(rp::cuda_driver, kind, settings);
    std::sort(us.begin(), us.end());
    print({{"what", name},
           {"median_us", us[us.size() / 2]},
           {"p99_us", us[us.size() * 99 / 100]},
           {"rounds", us.size()}});
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  // As rp-launch does, so that a stream that waits does not hold up another one in the same
  // hardware queue.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  return rp::run_program("gpu_signals", [&] { return measure({argv + 1, argv + argc}); });
}
