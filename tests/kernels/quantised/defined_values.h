// tests/kernels/quantised/defined_values.h
// The values of quantised weights by the definitions in kernels/quantised_weights.h, one by one: what every expansion
// is compared with.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/quantised_weights.h"

namespace rp {

// A binary number with a sign, two to four bits of exponent and one to three of fraction, by its definition.
inline double small_float(int code, int exponent_bits, int fraction_bits, int bias) {
  const int fraction = code & ((1 << fraction_bits) - 1);
  const int exponent = code >> fraction_bits & ((1 << exponent_bits) - 1);
  const double part = std::ldexp(fraction, -fraction_bits);
  const double size = exponent == 0 ? std::ldexp(part, 1 - bias) : std::ldexp(1 + part, exponent - bias);
  return (code >> (exponent_bits + fraction_bits) & 1) != 0 ? -size : size;
}
inline double e2m1(int code) { return small_float(code, 2, 1, 1); }
inline double e4m3(int code) {
  return (code & 0x7f) == 0x7f ? std::numeric_limits<double>::quiet_NaN() : small_float(code, 4, 3, 7);
}

inline float float_at(const void* array, std::int64_t i) { return static_cast<const float*>(array)[i]; }

// Returns element i of a matrix, counted in row-major order.
inline float defined_value(const QuantisedMatrix& m, std::int64_t i) {
  const bool is_even = i % 2 == 0;
  const std::int64_t row = i / m.columns, column = i % m.columns;
  const auto half = [&](bool high) { return high ? m.codes[i / 2] >> 4 : m.codes[i / 2] & 0xf; };
  const auto byte_scale = [&](std::int64_t at) { return static_cast<const std::uint8_t*>(m.scales)[at]; };
  switch (m.format) {
    case WeightFormat::kNf4: return kNf4Codes.at[half(is_even)] * float_at(m.scales, i / 64);
    case WeightFormat::kNf4Double: {
      const float scale = kNestedMap.at[byte_scale(i / 64)] * m.nested_scales[i / 64 / 256] + *m.offset;
      return kNf4Codes.at[half(is_even)] * scale;
    }
    case WeightFormat::kMxfp4: {
      const int scale = byte_scale(row * (m.columns / 32) + column / 32);
      if (scale == 255) return std::numeric_limits<float>::quiet_NaN();
      return static_cast<float>(std::ldexp(e2m1(half(!is_even)), scale - 127));
    }
    case WeightFormat::kFp8Blocks:
      return static_cast<float>(e4m3(m.codes[i])) *
             float_at(m.scales, row / 128 * ((m.columns + 127) / 128) + column / 128);
    case WeightFormat::kFp8Tensor: return static_cast<float>(e4m3(m.codes[i])) * float_at(m.scales, 0);
  }
  return 0;
}

// Returns all elements of all matrices.
inline std::vector<float> defined_values(const QuantisedWeights& weights) {
  std::vector<float> values;
  for (std::int64_t matrix = 0; matrix < weights.shape.matrices; ++matrix) {
    const QuantisedMatrix m = matrix_of(weights, matrix);
    for (std::int64_t i = 0; i < weights.shape.num_elements(); ++i) values.push_back(defined_value(m, i));
  }
  return values;
}

}  // namespace rp
