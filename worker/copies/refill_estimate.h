// worker/copies/refill_estimate.h
// Estimates how fast a link is, and how long the host takes to refill it, from copies that had the
// link to themselves.
//
// The time until the host sees that such a copy is done is one refill plus the link's time for its
// bytes, no matter which thread does which part. Plotted against the length of the copy, this time
// is a line: its slope is the link's time for a byte, and its intercept is the refill. The estimate
// is the line with the least absolute deviations. Some copies take longer because of other copies
// on the link or a host that was late. As long as these are fewer than half of the short copies and
// fewer than half of the long ones, they do not change the line.
//
// Pure arithmetic: it allocates no memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace rp {

class RefillEstimate {
 public:
  static constexpr std::size_t kNumSamples = 12;  // only the last ones count
  static constexpr std::size_t kMinSamples = 4;   // fewer samples give no estimate

  // Adds a copy of this length. `ns` is the time from just before the copy was enqueued until the
  // host saw that it was done.
  void add(std::uint64_t bytes, std::int64_t ns);
  [[nodiscard]] std::uint64_t num_added() const { return num_added_; }

  // Returns the number of bytes that the link transfers in the time of a refill, at most `limit`.
  // Returns nothing until there are enough samples, some of which are at least 1.5 times as long as
  // others.
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
