// common/random_seed.h
// Seeds that are a function of a place in the run and of nothing else: who computes, and how often, does not matter.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace rp {

// The next number of the generator of this name (Steele, Lea, Flood 2014).
inline std::uint64_t splitmix64(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9E3779B97F4A7C15U);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

// The seed of what a layer draws for one microbatch, in forward and in recompute alike. `round` counts from the start
// of training.
inline std::uint64_t random_seed(std::uint64_t run_seed, std::uint64_t round, std::uint64_t layer,
                                 std::uint64_t microbatch) {
  std::uint64_t seed = run_seed;
  for (const std::uint64_t part : {round, layer, microbatch}) seed = splitmix64(seed) ^ part;
  return splitmix64(seed);
}

}  // namespace rp
