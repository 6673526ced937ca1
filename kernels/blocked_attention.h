// kernels/blocked_attention.h
// Sizes of the attention of large heads on a GPU (models/layers/attention/blocked_attention.h).
#pragma once

#include <algorithm>
#include <cstdint>

namespace rp {

// The largest head for which LibTorch's flash attention runs. Larger ones are computed in blocks.
inline constexpr std::int64_t kLargestFlashHead = 256;

// How many scores of a microbatch exist at a time, if a block has more than the fewest queries.
inline constexpr std::int64_t kScoresOfABlock = std::int64_t{1} << 24;

// Returns the number of queries of a block, for n heads in b sequences of t positions. So the order of
// sums depends on the shape alone.
[[nodiscard]] constexpr std::int64_t queries_of_a_block(std::int64_t b, std::int64_t n, std::int64_t t) {
  constexpr std::int64_t kFewest = 16;
  return std::min(t, std::max(kFewest, kScoresOfABlock / std::max<std::int64_t>(1, b * n * t)));
}

}  // namespace rp
