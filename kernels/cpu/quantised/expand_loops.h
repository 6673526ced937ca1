// kernels/cpu/quantised/expand_loops.h
// The loops of weight_kernels.h that expand quantised weights. Included by one source per
// instruction set (vector16.h).
#pragma once

#include "kernels/cpu/quantised/weight_kernels.h"
#include "kernels/cpu/vector16.h"

namespace rp::models {
namespace {

using Bytes = std::uint8_t __attribute__((vector_size(16)));
using BytesInMemory [[gnu::aligned(1), gnu::may_alias]] = Bytes;

RP_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// The values of a block's sixteen codes, rounded to the results' format. So each value is computed
// once per block, and an element is a look-up.
template <typename T>
struct BlockValues {
  T at[16];
};

// The formats with 4-bit codes. Each reads the scale of a block of a matrix.
struct Nf4 {
  static constexpr std::int64_t kBlock = kNf4Block;
  static constexpr bool kHighFirst = true;
  static constexpr const HalfByteCodes& kCodes = kNf4Codes;
  static float scale(const QuantisedMatrix& m, std::int64_t block) { return static_cast<const float*>(m.scales)[block]; }
};
struct Nf4Double : Nf4 {
  static float scale(const QuantisedMatrix& m, std::int64_t block) {
    const float value = kNestedMap.at[static_cast<const std::uint8_t*>(m.scales)[block]];
    return value * m.nested_scales[block / kNestedBlock] + *m.offset;
  }
};
struct Mxfp4 {
  static constexpr std::int64_t kBlock = kMxfp4Block;
  static constexpr bool kHighFirst = false;
  static constexpr const HalfByteCodes& kCodes = kMxfp4Codes;
  static float scale(const QuantisedMatrix& m, std::int64_t block) {
    const std::uint32_t exponent = static_cast<const std::uint8_t*>(m.scales)[block];
    // 2^-127 is a subnormal number.
    const std::uint32_t bits = exponent == 0 ? 0x00400000U : exponent == 255 ? 0x7fc00000U : exponent << 23;
    return __builtin_bit_cast(float, bits);
  }
};

// Writes the values of the 32 codes in 16 bytes.
template <bool kHighFirst, typename T>
RP_INLINE void look_up(const BlockValues<T>& values, const std::uint8_t* codes, T* to) {
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    const int low = codes[i] & 0xf, high = codes[i] >> 4;
    to[2 * i] = values.at[kHighFirst ? high : low];
    to[2 * i + 1] = values.at[kHighFirst ? low : high];
  }
}

template <bool kHighFirst>
RP_INLINE int code_at(const std::uint8_t* codes, std::int64_t i) {
  return (i % 2 == 0) == kHighFirst ? codes[i / 2] >> 4 : codes[i / 2] & 0xf;
}

template <typename Format, typename T>
void expand_blocks(const QuantisedMatrix& m, T* to, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t block = i / Format::kBlock, stop = smaller(end, (block + 1) * Format::kBlock);
    BlockValues<T> values;
    store(values.at, load(Format::kCodes.at) * Format::scale(m, block));
    if (stop - i == Format::kBlock) {
      for (; i < stop; i += 32) look_up<Format::kHighFirst>(values, m.codes + i / 2, to + i);
    } else {
      for (; i < stop; ++i) to[i] = values.at[code_at<Format::kHighFirst>(m.codes, i)];
    }
  }
}

RP_INLINE Bytes load_codes(const std::uint8_t* codes, std::int64_t, Whole) {
  return *reinterpret_cast<const BytesInMemory*>(codes);
}
RP_INLINE Bytes load_codes(const std::uint8_t* codes, std::int64_t count, Partial) {
  Bytes some = {};
  for (std::int64_t k = 0; k < count; ++k) some[k] = codes[k];
  return some;
}

// A fp8 number has the bits of an fp16 number of a 256th of its size, without the lower seven.
RP_INLINE Floats widen_fp8(Bytes codes) {
  const Halves halves = __builtin_convertvector(codes, Halves);
  const Halves magnitude = halves & 0x7f;
  const Halves bits = magnitude == 0x7f ? Halves{} + 0x7e00 : magnitude << 7;
  return widen_fp16(bits | (halves & 0x80) << 8) * 256.0F;
}

// Expands elements of one row. All of them have the same scale.
template <typename T>
RP_INLINE void expand_run(const std::uint8_t* codes, float scale, T* to, std::int64_t count) {
  for_each_sixteen(0, count, [&](std::int64_t i, std::int64_t n, auto part) {
    store(to + i, widen_fp8(load_codes(codes + i, n, part)) * scale, n, part);
  });
}

template <typename T>
void expand_fp8(const QuantisedMatrix& m, T* to, std::int64_t begin, std::int64_t end) {
  const bool has_blocks = m.format == WeightFormat::kFp8Blocks;
  const std::int64_t height = has_blocks ? kFp8Side : m.rows, width = has_blocks ? kFp8Side : m.columns;
  const std::int64_t blocks_of_row = (m.columns + width - 1) / width;
  for (std::int64_t row = begin / m.columns; row * m.columns < end; ++row) {
    const std::int64_t first = row * m.columns;  // the row's first element
    const float* scale = static_cast<const float*>(m.scales) + row / height * blocks_of_row;
    const std::int64_t stop = smaller(end - first, m.columns);
    for (std::int64_t block = 0; block < stop; block += width, ++scale) {
      const std::int64_t from = block < begin - first ? begin - first : block;
      const std::int64_t until = smaller(stop, block + width);
      if (from < until) expand_run(m.codes + first + from, *scale, to + first + from, until - from);
    }
  }
}

template <typename T>
void expand_matrix(const QuantisedMatrix& m, void* values, std::int64_t begin, std::int64_t end) {
  T* to = static_cast<T*>(values);
  switch (m.format) {
    case WeightFormat::kNf4: return expand_blocks<Nf4>(m, to, begin, end);
    case WeightFormat::kNf4Double: return expand_blocks<Nf4Double>(m, to, begin, end);
    case WeightFormat::kMxfp4: return expand_blocks<Mxfp4>(m, to, begin, end);
    case WeightFormat::kFp8Blocks:
    case WeightFormat::kFp8Tensor: return expand_fp8(m, to, begin, end);
  }
}

}  // namespace
}  // namespace rp::models
