// benchmarks/registration.h
// Measures what it takes to register a host store with the driver in several processes at once, and what that does to a
// process that is busy meanwhile. Of gpu_registration.cc, which says what is measured.
#pragma once

#include <cstdint>
#include <functional>

#include "cuda/driver.h"

namespace rp {

struct RegistrationSettings {
  std::uint64_t bytes = std::uint64_t{4} << 30;          // of the store, all of which each process registers
  std::uint64_t piece_bytes = std::uint64_t{256} << 20;  // of one call of the driver
  int max_attempts = 40;                                 // for a piece; then it is given up
  std::int64_t pause_ns = 50 * 1'000'000;                // between two attempts
  std::int64_t idle_ns = 500 * 1'000'000;                // how long a process is watched before it registers
  double timeout_s = 120;                                // of the whole
};

// The longest of its kind in any of the processes, from the call to its end.
struct LongestCalls {
  std::int64_t launch_ns = 0;  // a kernel of a few bytes, until the GPU has done it
  std::int64_t copy_ns = 0;    // a page from pinned memory to the GPU, until it is there
  std::int64_t mmap_ns = 0;    // a page of memory, mapped and unmapped
};

struct RegistrationFigures {
  std::int64_t slowest_ns = 0;  // from the begin of all to the last piece of the slowest process
  int failed_attempts = 0;      // of all processes: the driver gave an error
  int given_up = 0;             // pieces
  LongestCalls idle{};          // before
  LongestCalls busy{};          // while the process's other thread registers
};

// Gives the driver's table to a process that was just forked.
using DriverOf = std::function<const CudaDriver&()>;

// `num_processes` (at most 16) attach the same store, as workers do: one half of it writable, the other read-only.
// REQUIRES: this process has not used CUDA. Throws rp::Error with the code of a process that failed, or kNoResource
// without memory.
[[nodiscard]] RegistrationFigures measure_registration(const DriverOf& driver, int num_processes,
                                                       const RegistrationSettings& settings);

}  // namespace rp
