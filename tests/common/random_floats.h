// tests/common/random_floats.h
// Random numbers in fp32. The distributions are those of the standard library, in a source of their own: where a test
// is compiled without optimisation, they take most of its time, because each number needs two logarithms in extended
// precision.
#pragma once

#include <random>

namespace rp {

class NormalFloats {
 public:
  explicit NormalFloats(float mean = 0, float deviation = 1) : distribution_(mean, deviation) {}
  float operator()(std::mt19937& generator);

 private:
  std::normal_distribution<float> distribution_;
};

class UniformFloats {
 public:
  UniformFloats(float begin, float end) : distribution_(begin, end) {}
  float operator()(std::mt19937& generator);

 private:
  std::uniform_real_distribution<float> distribution_;
};

}  // namespace rp
