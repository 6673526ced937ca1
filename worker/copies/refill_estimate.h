// worker/copies/refill_estimate.h
// Estimates how fast a link is, and how long the host takes to refill it, from copies that had the link to themselves.
//
// The host sees such a copy done after a refill and the link's time for its bytes, whatever happens in which thread:
// over copies of different lengths that is a line, whose slope is the link's time for a byte and whose beginning is the
// refill. Of all lines the one with the least absolute deviations is taken: where less than half of the short and of
// the long copies were held up, by other copies on the link or by a host that was late, it is that of the others.
//
// Pure arithmetic, without memory of its own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace rp {

class RefillEstimate {
 public:
  static constexpr std::size_t kNumSamples = 12;  // the last ones count
  static constexpr std::size_t kMinSamples = 4;   // fewer say nothing

  // A copy of so many bytes, from before it was enqueued until it was seen done.
  void add(std::uint64_t bytes, std::int64_t ns);
  [[nodiscard]] std::uint64_t num_added() const { return num_added_; }

  // What the link carries in the time of a refill, at most `limit`. Nothing before there are enough samples, some at
  // least 1.5 times as long as others.
  [[nodiscard]] std::optional<std::uint64_t> refill_bytes(std::uint64_t limit) const;

 private:
  struct Sample {
    double bytes = 0;
    double ns = 0;
  };
  struct Line {
    double ns_per_byte = 0;
    double refill_ns = 0;
  };
  [[nodiscard]] std::span<const Sample> samples() const;
  [[nodiscard]] double deviations(const Line& line) const;
  [[nodiscard]] std::optional<Line> fit() const;

  std::array<Sample, kNumSamples> samples_{};
  std::uint64_t num_added_ = 0;
};

}  // namespace rp
