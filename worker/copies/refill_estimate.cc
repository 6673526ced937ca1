#include "worker/copies/refill_estimate.h"

#include <algorithm>
#include <cmath>

namespace rp {

void RefillEstimate::add(std::uint64_t bytes, std::int64_t ns) {
  samples_[num_added_++ % kNumSamples] = {.bytes = static_cast<double>(bytes), .ns = static_cast<double>(ns)};
}

std::span<const RefillEstimate::Sample> RefillEstimate::samples() const {
  return {samples_.data(), std::min<std::size_t>(num_added_, kNumSamples)};
}

double RefillEstimate::deviations(const Line& line) const {
  double sum_ns = 0;
  for (const Sample& sample : samples())
    sum_ns += std::abs(sample.ns - line.refill_ns - line.ns_per_byte * sample.bytes);
  return sum_ns;
}

// Some line with the least absolute deviations goes through two of the samples, so it is enough to
// try all pairs.
std::optional<RefillEstimate::Line> RefillEstimate::fit() const {
  std::optional<Line> best;
  for (const Sample& shorter : samples()) {
    for (const Sample& longer : samples()) {
      if (longer.bytes < 1.5 * shorter.bytes) continue;
      const double ns_per_byte = (longer.ns - shorter.ns) / (longer.bytes - shorter.bytes);
      const Line line{.ns_per_byte = ns_per_byte, .refill_ns = shorter.ns - ns_per_byte * shorter.bytes};
      if (!best || deviations(line) < deviations(*best)) best = line;
    }
  }
  return best;
}

std::optional<std::uint64_t> RefillEstimate::refill_bytes(std::uint64_t limit) const {
  const std::optional<Line> line = num_added_ < kMinSamples ? std::nullopt : fit();
  if (!line) return std::nullopt;
  if (line->ns_per_byte <= 0) return limit;  // the link is so fast that only the refill is visible
  return static_cast<std::uint64_t>(std::clamp(line->refill_ns / line->ns_per_byte, 0.0, static_cast<double>(limit)));
}

}  // namespace rp
