// benchmarks/bulk_traffic.h
// Measures long copies between a GPU and registered memory as workers make them, in pieces of which few are under way,
// and what they do to copies that are urgent. Of gpu_bulk_copies.cc, which says what is measured.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/driver.h"

namespace rp {

// How a long copy is cut. All bytes in one piece without a limit: it is not.
struct Pieces {
  std::uint64_t bytes = std::uint64_t{4} << 20;
  std::uint64_t under_way = 2;
};

struct BulkSettings {
  std::uint64_t bytes = std::uint64_t{256} << 20;  // of a long copy, in each direction
  std::vector<std::uint64_t> piece_bytes{std::uint64_t{2} << 20, std::uint64_t{4} << 20, std::uint64_t{8} << 20,
                                         std::uint64_t{16} << 20};
  std::vector<std::uint64_t> under_way{2, 3, 4, 6};
  int rounds = 3;                                       // of which medians are taken
  int num_urgent = 60;                                  // urgent copies of each kind beside each traffic
  std::uint64_t input_bytes = std::uint64_t{16} << 20;  // an upload: a microbatch's inputs
  std::uint64_t page_bytes = 4096;                      // a download: a task's results
};

struct BulkSpeed {
  std::string direction{};  // "up", "down", "both": then of each of the two
  Pieces pieces{};
  bool is_cut = true;
  bool is_traced = false;  // with two host functions for each piece, as a run with a trace has
  double gbs = 0;          // 10^9 bytes a second
};

// All combinations, and of each direction what it is uncut. Takes twice `bytes` of the host's memory and of the GPU's.
// Throws rp::Error.
[[nodiscard]] std::vector<BulkSpeed> measure_bulk_speeds(const CudaDriver& driver, const BulkSettings& settings);

// From the call of the driver to the end of the copy.
struct UrgentDelay {
  std::string traffic{};  // "idle", "yields", "uncut": in the copy's own direction meanwhile
  double input_us = 0;    // medians
  double page_us = 0;
  double longest_input_us = 0;
  double longest_page_us = 0;
};

[[nodiscard]] std::vector<UrgentDelay> measure_urgent_delays(const CudaDriver& driver, const BulkSettings& settings);

}  // namespace rp
