// tests/random/draw.h
// Makes random choices that depend only on the seed, on every machine.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cstdint>
#include <initializer_list>
#include <random>

namespace rp::test {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}

  std::uint64_t seed() { return random_(); }
  // Returns a number from `low` to `high`, both included.
  int between(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return between(0, 99) < percent; }
  template <typename T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[between(0, static_cast<int>(values.size()) - 1)];
  }

  at::Tensor normal(at::IntArrayRef sizes) { return at::randn(sizes, generator()); }
  at::Tensor integers(std::int64_t end, at::IntArrayRef sizes) {
    return at::randint(end, sizes, generator(), at::kLong);
  }

 private:
  at::Generator generator() { return at::make_generator<at::CPUGeneratorImpl>(random_()); }

  std::mt19937_64 random_;
};

}  // namespace rp::test
