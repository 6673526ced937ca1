// common/random_seed.h
// Computes seeds that depend only on a place in the run, and not on which process computes them or
// how often.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace rp {

// Returns the next number of the SplitMix64 generator (Steele, Lea, Flood 2014).
inline std::uint64_t splitmix64(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9E3779B97F4A7C15U);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

// Returns the seed of the random numbers that a layer draws for one microbatch, in its forward and
// in its recompute alike. `round` counts from the start of training.
inline std::uint64_t random_seed(std::uint64_t run_seed, std::uint64_t round, std::uint64_t layer,
                                 std::uint64_t microbatch) {
  std::uint64_t seed = run_seed;
  for (const std::uint64_t part : {round, layer, microbatch}) seed = splitmix64(seed) ^ part;
  return splitmix64(seed);
}

}  // namespace rp
