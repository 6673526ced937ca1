// benchmarks/store_bandwidth.h
// Measures how fast a GPU copies to and from a host store as a worker does it, and compares it with
// plain pinned memory. Part of gpu_store_bandwidth.cc, which describes what is measured.
#pragma once

#include <fcntl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/driver.h"
#include "hoststore/store.h"

namespace rp {

struct StoreBandwidthSettings {
  std::uint64_t bytes = std::uint64_t{512} << 20;  // of a copy, in each direction
  int rounds = 9;                                  // the medians of these rounds are taken
  std::string backing{};                           // of the store: "shm", "memfd", or "" for the best
};

// Speeds in GB/s (10^9 bytes per second).
struct StoreBandwidth {
  std::string what{};   // "up", "down"; "both_up", "both_down": of each direction while both are in use
  std::string store{};  // the backing: "shm", "memfd"
  double store_gbs = 0;
  double pinned_gbs = 0;
  double staged_gbs = 0;  // through the pinned buffer; 0 for "both_up" and "both_down"
};

// Needs five times `bytes` of the host's memory, and GPU memory for two copies. Throws rp::Error:
// kNoResource without a GPU or memory, kUserError if a copy delivered wrong bytes.
[[nodiscard]] std::vector<StoreBandwidth> measure_store_bandwidth(const CudaDriver& driver,
                                                                  const StoreBandwidthSettings& settings);

// Returns a second view of the store in this process, as a worker has it: parameters are read-only.
inline std::unique_ptr<Store> attached_view(const Store& store) {
  std::vector<UniqueFd> descriptors;
  for (const int fd : store.descriptors()) descriptors.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  return Store::attach(std::move(descriptors));
}

}  // namespace rp
