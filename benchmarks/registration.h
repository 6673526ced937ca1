// benchmarks/registration.h
// Measures how long several processes take to register a host store with the driver at the same
// time, and how that delays other calls of these processes. Part of gpu_registration.cc, which
// describes what is measured.
#pragma once

#include <cstdint>
#include <functional>

#include "cuda/driver.h"

namespace rp {

struct RegistrationSettings {
  std::uint64_t bytes = std::uint64_t{4} << 30;          // of the store; each process registers all of it
  std::uint64_t piece_bytes = std::uint64_t{256} << 20;  // registered by one call of the driver
  int max_attempts = 40;                                 // for a piece, which is then given up
  std::int64_t pause_ns = 50 * 1'000'000;                // between two attempts
  std::int64_t idle_ns = 500 * 1'000'000;                // how long a process is watched before it registers
  double timeout_s = 120;                                // of the whole measurement
};

// The longest call of each kind in any of the processes, from its beginning to its end.
struct LongestCalls {
  std::int64_t launch_ns = 0;  // a kernel on a few bytes, until the GPU has completed it
  std::int64_t copy_ns = 0;    // a page from pinned memory to the GPU, until it has arrived
  std::int64_t mmap_ns = 0;    // a page of memory, mapped and unmapped
};

struct RegistrationFigures {
  std::int64_t slowest_ns = 0;  // from the common beginning to the last piece of the slowest process
  int failed_attempts = 0;      // of all processes: the driver returned an error
  int given_up = 0;             // number of pieces
  LongestCalls idle{};          // before the registration
  LongestCalls busy{};          // while the process's other thread registers
};

// Returns the driver's table in a process that was just forked.
using DriverOf = std::function<const CudaDriver&()>;

// Measures `num_processes` (at most 16) processes that attach the same store, as workers do: one
// half of it writable, the other read-only. REQUIRES: this process has not used CUDA. Throws
// rp::Error with the exit code of a process that failed, or kNoResource without memory.
[[nodiscard]] RegistrationFigures measure_registration(const DriverOf& driver, int num_processes,
                                                       const RegistrationSettings& settings);

}  // namespace rp
