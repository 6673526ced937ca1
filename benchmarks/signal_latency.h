// benchmarks/signal_latency.h
// What it takes from the end of a producer's download to the start of a consumer's upload, and what waiting for words
// costs. Of gpu_signals.cc, which says what is measured.
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
  double timeout_s = 60;                         // of the whole
};

// The backends of docs/design/signals.md.
enum class SignalKind { kHost, kWords, kEvents };

// Gives the driver's table to a process that was just forked.
using DriverOf = std::function<const CudaDriver&()>;

// Microseconds, one a round; the first rounds are left out. REQUIRES: this process has not used CUDA. Throws rp::Error
// with the code of a process that failed.
[[nodiscard]] std::vector<double> measure_latencies(const DriverOf& driver, SignalKind kind,
                                                    const SignalSettings& settings);

// GB/s of uploads from pinned memory, in turns.
struct PollingCost {
  double without_gbs = 0;
  double with_gbs = 0;  // while another stream waits for a word of the host's memory
};
[[nodiscard]] PollingCost measure_polling(const CudaDriver& driver, std::uint64_t bytes, int rounds);

}  // namespace rp
