// launcher/probe/probe_measure.h
// Measures the bandwidth and latency between one GPU and host memory that is registered in the same
// manner as the host store.
#pragma once

#include <cstdint>
#include <memory>

#include "cuda/context.h"
#include "launcher/doctor/probe_figures.h"

namespace rp {

struct ProbeSettings {
  std::uint64_t bytes = std::uint64_t{256} << 20;  // size of a copy, in each direction
  double seconds = 0.5;                            // duration of the copies, for each of the three bandwidths
  int num_small_copies = 200;
};

// Owns the memory on both sides, which it allocates when it is constructed. Used by one thread; the
// context must outlive it.
class ProbeMeasure {
 public:
  // Allocates and registers the memory. Throws rp::Error (kNoResource) if one of the two fails.
  ProbeMeasure(const CudaContext& context, const ProbeSettings& settings);
  ~ProbeMeasure();
  ProbeMeasure(const ProbeMeasure&) = delete;
  ProbeMeasure& operator=(const ProbeMeasure&) = delete;

  // Needs about three times `seconds`. If several processes begin at the same time, their phases
  // run at the same time. Throws rp::Error.
  [[nodiscard]] ProbeFigures measure();

 private:
  class Buffers;
  enum class Direction { kUp, kDown };

  // Returns the bandwidth, in GB/s, of consecutive copies until `end_ns`.
  [[nodiscard]] double bandwidth(Direction direction, std::int64_t end_ns) const;
  // Returns the bandwidth of each direction, in GB/s, while both are active.
  [[nodiscard]] double both_bandwidth(std::int64_t end_ns) const;
  [[nodiscard]] double small_copy_us() const;

  const CudaContext& context_;
  ProbeSettings settings_;
  ProbeFigures fixed_;  // figures that are determined by the constructor: memory, registration
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace rp
