// benchmarks/store_bandwidth.h
// How fast a GPU copies to and from a host store as a worker does it, beside plain pinned memory. Of
// gpu_store_bandwidth.cc, which says what is measured.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/driver.h"

namespace rp {

struct StoreBandwidthSettings {
  std::uint64_t bytes = std::uint64_t{512} << 20;  // of a copy, in each direction
  int rounds = 9;                                  // of which medians are taken
  std::string backing{};                           // of the store: "shm", "memfd", "" for the best
};

// GB/s, 10^9 bytes a second.
struct StoreBandwidth {
  std::string what{};   // "up", "down", "both_up", "both_down": of each of the two at once
  std::string store{};  // what is behind it: "shm", "memfd"
  double store_gbs = 0;
  double pinned_gbs = 0;
  double staged_gbs = 0;  // through the pinned buffer; 0 for both at once
};

// Takes five times `bytes` of the host's memory and as much of the GPU's as two copies. Throws rp::Error: kNoResource
// without a GPU or memory, kUserError if a copy brought other bytes.
[[nodiscard]] std::vector<StoreBandwidth> measure_store_bandwidth(const CudaDriver& driver,
                                                                  const StoreBandwidthSettings& settings);

}  // namespace rp
