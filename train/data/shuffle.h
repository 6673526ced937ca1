// train/data/shuffle.h
// Shuffles numbers into the same order with every compiler and library (std::shuffle does not).
#pragma once

#include <cstdint>
#include <vector>

namespace rp {

// Returns the numbers 0 to count - 1 in an order that depends only on seed and stream: Fisher-Yates
// over xoshiro256** (Blackman and Vigna), seeded by splitmix64.
[[nodiscard]] std::vector<std::uint64_t> shuffled(std::uint64_t count, std::uint64_t seed, std::uint64_t stream);

}  // namespace rp
