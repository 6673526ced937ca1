// benchmarks/signal_latency.h
// Measures the time from the end of a producer's download to the start of a consumer's upload, and
// the cost of waiting for words. Part of gpu_signals.cc, which describes what is measured.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cuda/driver.h"

namespace rp {

struct SignalSettings {
  int rounds = 400;
  std::uint64_t bytes = std::uint64_t{8} << 20;  // of a download and of an upload: a microbatch's outputs
  std::int64_t pace_ns = 2 * 1'000'000;          // from one download to the next: longer than a copy and a latency
  double timeout_s = 60;                         // of the whole measurement
};

// The backends of docs/design/signals.md.
enum class SignalKind { kHost, kWords, kEvents };

// Returns the driver's table in a process that was just forked.
using DriverOf = std::function<const CudaDriver&()>;

// Returns the latencies in microseconds, one per round, without the first rounds. REQUIRES: this
// process has not used CUDA. Throws rp::Error with the exit code of a process that failed.
[[nodiscard]] std::vector<double> measure_latencies(const DriverOf& driver, SignalKind kind,
                                                    const SignalSettings& settings);

// GB/s of uploads from pinned memory, measured in turns.
struct PollingCost {
  double without_gbs = 0;
  double with_gbs = 0;  // while another stream waits for a word of the host's memory
};
[[nodiscard]] PollingCost measure_polling(const CudaDriver& driver, std::uint64_t bytes, int rounds);

}  // namespace rp
