// launcher/probe/probe_measure.h
// Measures how fast one GPU and the host's memory reach each other, over memory that is registered as the host store
// is.
#pragma once

#include <cstdint>
#include <memory>

#include "cuda/context.h"
#include "launcher/doctor/probe_figures.h"

namespace rp {

struct ProbeSettings {
  std::uint64_t bytes = std::uint64_t{256} << 20;  // of a copy, in each direction
  double seconds = 0.5;                            // of copies, for each of the three bandwidths
  int num_small_copies = 200;
};

// Owns the memory on both sides, from its making on. One thread's; the context must outlive it.
class ProbeMeasure {
 public:
  // Takes and registers the memory. Throws rp::Error: kNoResource, if one of the two is not to be had.
  ProbeMeasure(const CudaContext& context, const ProbeSettings& settings);
  ~ProbeMeasure();
  ProbeMeasure(const ProbeMeasure&) = delete;
  ProbeMeasure& operator=(const ProbeMeasure&) = delete;

  // Takes about three times `seconds`; several processes that begin at once have their phases at once. Throws
  // rp::Error.
  [[nodiscard]] ProbeFigures measure();

 private:
  class Buffers;
  enum class Direction { kUp, kDown };

  // GB/s of copies one after the other until the time is over. Of each of two at once where there are two.
  [[nodiscard]] double bandwidth(Direction direction, std::int64_t end_ns) const;
  [[nodiscard]] double both_bandwidth(std::int64_t end_ns) const;
  [[nodiscard]] double small_copy_us() const;

  const CudaContext& context_;
  ProbeSettings settings_;
  ProbeFigures fixed_;  // what is known since the start: memory, registering
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace rp
