// kernels/cpu/quantised/quantise_loops.h
// The loops of weight_kernels.h that quantise weights. Included by one source per instruction set
// (vector16.h).
#pragma once

#include "kernels/cpu/quantised/weight_kernels.h"
#include "kernels/cpu/vector16.h"

namespace rp::models {
namespace {

using Integers = std::int32_t __attribute__((vector_size(64)));
using CodesInMemory [[gnu::aligned(1), gnu::may_alias]] = std::uint8_t __attribute__((vector_size(16)));

RP_INLINE Integers magnitude_of(Floats x) { return reinterpret_cast<Integers>(x) & 0x7fffffff; }

// Returns the bits of the largest magnitude of `count` elements. The bits of magnitudes are ordered
// like the magnitudes, followed by infinity and NaNs, so these are found without a test of their own.
constexpr std::int32_t kInfinity = 0x7f800000;
template <typename T>
RP_INLINE std::int32_t largest_magnitude(const T* x, std::int64_t count) {
  Integers largest = {};
  for_each_sixteen(0, count, [&](std::int64_t i, std::int64_t n, auto part) {
    const Integers magnitude = magnitude_of(load(x + i, n, 0.0F, part));
    largest = magnitude > largest ? magnitude : largest;
  });
  std::int32_t result = 0;
  for (int k = 0; k < kLanes; ++k) result = largest[k] > result ? largest[k] : result;
  return result;
}

RP_INLINE void store_codes(std::uint8_t* to, Integers codes) {
  *reinterpret_cast<CodesInMemory*>(to) = __builtin_convertvector(codes, CodesInMemory);
}

// Quantises `count` (at most kMost) elements to 4-bit codes, two in a byte. quantise(Floats) returns
// the codes of sixteen elements; the unused half of a last byte gets the code of 0.
template <std::int64_t kMost, bool kHighFirst, typename T, typename Quantise>
RP_INLINE void quantise_half_bytes(const T* x, std::int64_t count, std::uint8_t* codes, const Quantise& quantise) {
  std::uint8_t each[kMost];
  for_each_sixteen(0, count, [&](std::int64_t i, std::int64_t n, auto part) {
    store_codes(each + i, quantise(load(x + i, n, 0.0F, part)));
  });
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
template <typename Value>
RP_INLINE Value scaled(Value x, const BlockScale& s) {
  return s.is_whole ? x * s.reciprocal : x / s.scale;
}

// Returns the number of borders between codes that are below x: the code of the nearest value.
RP_INLINE Integers nearest_nf4(Floats x) {
  Integers code = {};
#pragma GCC unroll 15
  for (int k = 0; k < 15; ++k) code -= x > all((kNf4Codes.at[k] + kNf4Codes.at[k + 1]) / 2);  // true is -1
  return code;
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
    const std::int32_t largest = largest_magnitude(x + first, count);
    if (largest >= kInfinity) return false;
    const BlockScale scale = block_scale(__builtin_bit_cast(float, largest), is_whole);
    scales[first / kNf4Block] = scale.stored;
    quantise_half_bytes<kNf4Block, true>(x + first, count, m.codes + first / 2,
                                         [&](Floats values) { return nearest_nf4(scaled(values, scale)); });
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
RP_INLINE Integers nearest_e2m1(Floats x) {
  const Floats size = reinterpret_cast<Floats>(magnitude_of(x));
  const Integers larger_codes =
      (size > 0.25F) + (size >= 0.75F) + (size > 1.25F) + (size >= 1.75F) + (size > 2.5F) + (size >= 3.5F) + (size > 5.0F);
  const Integers sign = reinterpret_cast<Integers>(reinterpret_cast<Words>(x) >> 31);
  return (sign << 3) - larger_codes;  // true is -1
}

template <typename T>
bool quantise_mxfp4(const QuantiseMatrix& m) {
  const T* x = static_cast<const T*>(m.values);
  for (std::int64_t first = 0; first < m.rows * m.columns; first += kMxfp4Block) {
    const std::int32_t largest = largest_magnitude(x + first, kMxfp4Block);
    if (largest >= kInfinity) return false;
    const std::int32_t exponent = largest >> 23;  // with bias 127; the exponent of 4, which codes have, is 2
    const std::int32_t scale = exponent > 2 ? exponent - 2 : 0;
    const float reciprocal = __builtin_bit_cast(float, (254 - scale) << 23);  // a power of two: the product is exact
    static_cast<std::uint8_t*>(m.scales)[first / kMxfp4Block] = static_cast<std::uint8_t>(scale);
    quantise_half_bytes<kMxfp4Block, false>(x + first, kMxfp4Block, m.codes + first / 2,
                                            [&](Floats values) { return nearest_e2m1(values * reciprocal); });
  }
  return true;
}

// Rounds to E4M3, ties to even. Magnitudes above the largest become it.
RP_INLINE Integers nearest_e4m3(Floats x) {
  const Floats size = reinterpret_cast<Floats>(magnitude_of(x));
  const Floats limited = size < kLargestFp8 ? size : all(kLargestFp8);
  const Integers bits = reinterpret_cast<Integers>(limited);
  // An fp32 number has 20 bits of fraction more, and a bias that is larger by 120.
  const Integers normal = ((bits + 0x7ffff + ((bits >> 20) & 1)) >> 20) - (120 << 3);
  // Subnormal numbers count units of 2^-9, which is the last bit of fp32 numbers from 2^14 on.
  const Integers subnormal = reinterpret_cast<Integers>(limited + 0x1p14F) - __builtin_bit_cast(int, 0x1p14F);
  const Integers sign = reinterpret_cast<Integers>(reinterpret_cast<Words>(x) >> 31);
  return (limited < 0x1p-6F ? subnormal : normal) | sign << 7;
}

template <typename T>
void quantise_fp8_row(const T* x, std::int64_t count, float scale, std::uint8_t* codes) {
  for_each_sixteen(0, count, [&](std::int64_t i, std::int64_t n, auto part) {
    std::uint8_t each[kLanes];
    store_codes(each, nearest_e4m3(load(x + i, n, 0.0F, part) / scale));
    __builtin_memcpy(codes + i, each, static_cast<std::size_t>(n));
  });
}

// Quantises a rectangle of a matrix that has one scale.
struct Rectangle {
  std::int64_t row, column, height, width;
};
template <typename T>
bool quantise_rectangle(const QuantiseMatrix& m, const Rectangle& r, float& scale) {
  const std::int64_t begin = r.row * m.columns + r.column, end = begin + r.height * m.columns;
  const T* x = static_cast<const T*>(m.values);
  std::int32_t largest = 0;
  for (std::int64_t row = begin; row < end; row += m.columns) {
    const std::int32_t of_row = largest_magnitude(x + row, r.width);
    largest = of_row > largest ? of_row : largest;
  }
  if (largest >= kInfinity) return false;
  const float quotient = __builtin_bit_cast(float, largest) / kLargestFp8;
  scale = quotient > 0 ? quotient : 1.0F;
  for (std::int64_t row = begin; row < end; row += m.columns) quantise_fp8_row(x + row, r.width, scale, m.codes + row);
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
      if (!quantise_rectangle<T>(m, {row, column, rows, columns}, *scale)) return false;
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
