// benchmarks/bulk_traffic.h
// Measures long copies between a GPU and registered memory as workers make them, in pieces of which
// only a few are under way, and how they delay urgent copies. Part of gpu_bulk_copies.cc, which
// describes what is measured.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/driver.h"

namespace rp {

// How a long copy is cut. A copy that is not cut is one piece of all bytes.
struct Pieces {
  std::uint64_t bytes = std::uint64_t{4} << 20;
  std::uint64_t under_way = 2;
};

struct BulkSettings {
  std::uint64_t bytes = std::uint64_t{256} << 20;  // of a long copy, in each direction
  std::vector<std::uint64_t> piece_bytes{std::uint64_t{2} << 20, std::uint64_t{4} << 20, std::uint64_t{8} << 20,
                                         std::uint64_t{16} << 20};
  std::vector<std::uint64_t> under_way{2, 3, 4, 6};
  int rounds = 3;                                       // the medians of these rounds are taken
  int num_urgent = 60;                                  // urgent copies of each kind with each traffic
  std::uint64_t input_bytes = std::uint64_t{16} << 20;  // of an urgent upload: a microbatch's inputs
  std::uint64_t page_bytes = 4096;                      // of an urgent download: a task's results
};

struct BulkSpeed {
  std::string direction{};  // "up", "down", or "both"; with "both" the figure is for each direction
  Pieces pieces{};
  bool is_cut = true;
  bool is_traced = false;  // with two host functions for each piece, as in a run with a trace
  double gbs = 0;          // 10^9 bytes per second
};

// Measures all combinations, and an uncut copy in each direction. Needs twice `bytes` of the host's
// memory and of the GPU's. Throws rp::Error.
[[nodiscard]] std::vector<BulkSpeed> measure_bulk_speeds(const CudaDriver& driver, const BulkSettings& settings);

// Times from the call of the driver to the end of an urgent copy.
struct UrgentDelay {
  std::string traffic{};  // "idle", "yields" or "uncut": the other traffic in the copy's direction
  double input_us = 0;    // medians
  double page_us = 0;
  double longest_input_us = 0;
  double longest_page_us = 0;
};

[[nodiscard]] std::vector<UrgentDelay> measure_urgent_delays(const CudaDriver& driver, const BulkSettings& settings);

}  // namespace rp
