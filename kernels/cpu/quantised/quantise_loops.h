// kernels/cpu/quantised/quantise_loops.h
// The loops of weight_kernels.h that quantise weights. Included by one source per instruction set
// (elements.h).
#pragma once

#include "kernels/cpu/quantised/elements.h"
#include "kernels/cpu/quantised/weight_kernels.h"

namespace rp::models {
namespace {

constexpr std::uint32_t kInfinity = 0x7f800000;  // the bits

RP_INLINE std::uint32_t magnitude_of(float x) { return bits_of(x) & 0x7fffffffU; }

// Returns the bits of the largest magnitude of `count` elements. The bits of magnitudes are ordered
// like the magnitudes, followed by infinity and NaNs, so these are found without a test of their own.
template <typename T>
RP_INLINE std::uint32_t largest_magnitude(const T* x, std::int64_t count) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t magnitude = magnitude_of(widen(x[i]));
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

// Quantises `count` (at most kMost) elements to 4-bit codes, two in a byte. The unused half of a last
// byte gets the code of 0.
template <std::int64_t kMost, bool kHighFirst, typename T, typename Quantise>
RP_INLINE void quantise_half_bytes(const T* x, std::int64_t count, std::uint8_t* codes, const Quantise& quantise) {
  float values[kMost] = {};
  std::uint8_t each[kMost];
  for (std::int64_t i = 0; i < count; ++i) values[i] = widen(x[i]);
  for (std::int64_t i = 0; i < kMost; ++i) each[i] = quantise(values[i]);
  for (std::int64_t i = 0; i < (count + 1) / 2; ++i) {
    const int first = each[2 * i], second = each[2 * i + 1];
    codes[i] = static_cast<std::uint8_t>(kHighFirst ? first << 4 | second : second << 4 | first);
  }
}

// Divides x by the scale of its block as bitsandbytes does: a whole block is multiplied by the
// reciprocal. The scale of a whole block of zeros stays 0, that of a short one becomes kSmallestScale.
constexpr float kSmallestScale = 1e-38F;
struct BlockScale {
  float scale, stored, reciprocal;
  bool is_whole;
};
RP_INLINE BlockScale block_scale(float largest, bool is_whole) {
  const float scale = largest > kSmallestScale ? largest : kSmallestScale;
  return {scale, is_whole ? largest : scale, 1.0F / scale, is_whole};
}
RP_INLINE float scaled(float x, const BlockScale& s) { return s.is_whole ? x * s.reciprocal : x / s.scale; }

// Returns the number of borders between codes that are below x: the code of the nearest value.
RP_INLINE std::uint8_t nearest_nf4(float x) {
  int code = 0;
#pragma GCC unroll 15
  for (int k = 0; k < 15; ++k) code += x > (kNf4Codes.at[k] + kNf4Codes.at[k + 1]) / 2 ? 1 : 0;
  return static_cast<std::uint8_t>(code);
}
RP_INLINE std::uint8_t nearest_in_nested_map(float x) {
  int code = 0;
  for (int step = 128; step > 0; step /= 2) {
    const int below = code + step - 1;
    if (x > (kNestedMap.at[below] + kNestedMap.at[below + 1]) / 2) code += step;
  }
  return static_cast<std::uint8_t>(code);
}

template <typename T>
bool quantise_nf4(const QuantiseMatrix& m, float* scales) {
  const T* x = static_cast<const T*>(m.values);
  const std::int64_t elements = m.rows * m.columns;
  for (std::int64_t first = 0; first < elements; first += kNf4Block) {
    const bool is_whole = elements - first >= kNf4Block;
    const std::int64_t count = is_whole ? kNf4Block : elements - first;
    const std::uint32_t largest = largest_magnitude(x + first, count);
    if (largest >= kInfinity) return false;
    const BlockScale scale = block_scale(float_of(largest), is_whole);
    scales[first / kNf4Block] = scale.stored;
    quantise_half_bytes<kNf4Block, true>(x + first, count, m.codes + first / 2,
                                         [&](float value) { return nearest_nf4(scaled(value, scale)); });
  }
  return true;
}

// Quantises the scales of a matrix, which are in `scratch`.
RP_INLINE void quantise_scales(const QuantiseMatrix& m) {
  const std::int64_t num_scales = (m.rows * m.columns + kNf4Block - 1) / kNf4Block;
  auto* bytes = static_cast<std::uint8_t*>(m.scales);
  double sum = 0;
  for (std::int64_t i = 0; i < num_scales; ++i) sum += static_cast<double>(m.scratch[i]);
  const float offset = static_cast<float>(sum / static_cast<double>(num_scales));
  *m.offset = offset;
  for (std::int64_t first = 0; first < num_scales; first += kNestedBlock) {
    const bool is_whole = num_scales - first >= kNestedBlock;
    const std::int64_t end = is_whole ? first + kNestedBlock : num_scales;
    float largest = 0;
    for (std::int64_t i = first; i < end; ++i) {
      const float size = __builtin_fabsf(m.scratch[i] - offset);
      largest = size > largest ? size : largest;
    }
    const BlockScale scale = block_scale(largest, is_whole);
    m.nested_scales[first / kNestedBlock] = scale.stored;
    for (std::int64_t i = first; i < end; ++i) bytes[i] = nearest_in_nested_map(scaled(m.scratch[i] - offset, scale));
  }
}

// Rounds to E2M1: each comparison passes a tie to the even code.
RP_INLINE std::uint8_t nearest_e2m1(float x) {
  const float size = float_of(magnitude_of(x));
  const int code = (size > 0.25F ? 1 : 0) + (size >= 0.75F ? 1 : 0) + (size > 1.25F ? 1 : 0) + (size >= 1.75F ? 1 : 0) +
                   (size > 2.5F ? 1 : 0) + (size >= 3.5F ? 1 : 0) + (size > 5.0F ? 1 : 0);
  return static_cast<std::uint8_t>(static_cast<std::uint32_t>(code) | bits_of(x) >> 31 << 3);
}

template <typename T>
bool quantise_mxfp4(const QuantiseMatrix& m) {
  const T* x = static_cast<const T*>(m.values);
  for (std::int64_t first = 0; first < m.rows * m.columns; first += kMxfp4Block) {
    const std::uint32_t largest = largest_magnitude(x + first, kMxfp4Block);
    if (largest >= kInfinity) return false;
    const std::uint32_t exponent = largest >> 23;  // with bias 127; the exponent of 4, which codes have, is 2
    const std::uint32_t scale = exponent > 2 ? exponent - 2 : 0;
    const float reciprocal = float_of((254 - scale) << 23);  // a power of two: the product is exact
    static_cast<std::uint8_t*>(m.scales)[first / kMxfp4Block] = static_cast<std::uint8_t>(scale);
    quantise_half_bytes<kMxfp4Block, false>(x + first, kMxfp4Block, m.codes + first / 2,
                                            [&](float value) { return nearest_e2m1(value * reciprocal); });
  }
  return true;
}

// Rounds to E4M3, ties to even. Magnitudes above the largest become it.
RP_INLINE std::uint8_t nearest_e4m3(float x) {
  const float size = float_of(magnitude_of(x));
  const float limited = size < kLargestFp8 ? size : kLargestFp8;
  const std::uint32_t bits = bits_of(limited);
  // 20 bits of fraction are dropped, and the bias becomes smaller by 120.
  const std::uint32_t normal = ((bits + 0x7ffffU + ((bits >> 20) & 1U)) >> 20) - (120U << 3);
  // Subnormal numbers count units of 2^-9, which is the last bit of fp32 numbers from 2^14 on.
  const std::uint32_t subnormal = bits_of(limited + 0x1p14F) - bits_of(0x1p14F);
  return static_cast<std::uint8_t>((limited < 0x1p-6F ? subnormal : normal) | bits_of(x) >> 31 << 7);
}

// A part of a matrix that has one scale.
struct Rectangle {
  std::int64_t row, column, height, width;
};

template <typename T>
bool quantise_rectangle(const QuantiseMatrix& m, const Rectangle& r, float* scale_of_rectangle) {
  const std::int64_t begin = r.row * m.columns + r.column, end = begin + r.height * m.columns;
  const T* x = static_cast<const T*>(m.values);
  std::uint8_t* codes = m.codes;  // a store of a byte might change m
  std::uint32_t largest = 0;
  for (std::int64_t row = begin; row < end; row += m.columns) {
    const std::uint32_t of_row = largest_magnitude(x + row, r.width);
    largest = of_row > largest ? of_row : largest;
  }
  if (largest >= kInfinity) return false;
  const float quotient = float_of(largest) / kLargestFp8;
  const float scale = quotient > 0 ? quotient : 1.0F;
  for (std::int64_t row = begin; row < end; row += m.columns) {
    for (std::int64_t i = row; i < row + r.width; ++i) codes[i] = nearest_e4m3(widen(x[i]) / scale);
  }
  *scale_of_rectangle = scale;
  return true;
}

template <typename T>
bool quantise_fp8(const QuantiseMatrix& m) {
  const bool has_blocks = m.format == WeightFormat::kFp8Blocks;
  const std::int64_t height = has_blocks ? kFp8Side : m.rows, width = has_blocks ? kFp8Side : m.columns;
  auto* scale = static_cast<float*>(m.scales);
  for (std::int64_t row = 0; row < m.rows; row += height) {
    const std::int64_t rows = m.rows - row < height ? m.rows - row : height;
    for (std::int64_t column = 0; column < m.columns; column += width, ++scale) {
      const std::int64_t columns = m.columns - column < width ? m.columns - column : width;
      if (!quantise_rectangle<T>(m, {row, column, rows, columns}, scale)) return false;
    }
  }
  return true;
}

template <typename T>
bool quantise_matrix(const QuantiseMatrix& m) {
  switch (m.format) {
    case WeightFormat::kNf4: return quantise_nf4<T>(m, static_cast<float*>(m.scales));
    case WeightFormat::kNf4Double:
      if (!quantise_nf4<T>(m, m.scratch)) return false;
      quantise_scales(m);
      return true;
    case WeightFormat::kMxfp4: return quantise_mxfp4<T>(m);
    case WeightFormat::kFp8Blocks:
    case WeightFormat::kFp8Tensor: return quantise_fp8<T>(m);
  }
  return false;
}

}  // namespace
}  // namespace rp::models
