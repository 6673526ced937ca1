// kernels/cpu/quantised/expand_loops.h
// The loops of weight_kernels.h that expand quantised weights. Included by one source per
// instruction set (elements.h).
#pragma once

#include "kernels/cpu/quantised/elements.h"
#include "kernels/cpu/quantised/weight_kernels.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace rp::models {
namespace {

// The values of a block's sixteen codes, rounded to the results' format. So each value is computed
// once per block, and an element is a look-up.
template <typename T>
struct BlockValues {
  alignas(64) T at[16];
};

// The formats with 4-bit codes. scale() returns the scale of a block of a matrix.
struct Nf4 {
  static constexpr std::int64_t kBlock = kNf4Block;
  static constexpr bool kHighFirst = true;
  static constexpr const HalfByteCodes& kCodes = kNf4Codes;
  static float scale(const QuantisedMatrix& m, std::int64_t block) {
    return static_cast<const float*>(m.scales)[block];
  }
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
    return float_of(exponent == 0     ? 0x00400000U  // 2^-127, a subnormal number
                    : exponent == 255 ? 0x7fc00000U
                                      : exponent << 23);
  }
};

// Writes the values of the 32 codes in 16 bytes.
template <bool kHighFirst, typename T>
RP_INLINE void look_up(const BlockValues<T>& values, const std::uint8_t* codes, T* to) {
  for (int i = 0; i < 16; ++i) {
    const int low = codes[i] & 0xf, high = codes[i] >> 4;
    to[2 * i] = values.at[kHighFirst ? high : low];
    to[2 * i + 1] = values.at[kHighFirst ? low : high];
  }
}

#ifdef __AVX2__
// Returns the 32 codes in their order, one in a byte.
template <bool kHighFirst>
RP_INLINE __m256i codes_of(const std::uint8_t* codes) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)), half = _mm_set1_epi8(0xf);
  const __m128i low = _mm_and_si128(bytes, half), high = _mm_and_si128(_mm_srli_epi16(bytes, 4), half);
  const __m128i first = kHighFirst ? high : low, second = kHighFirst ? low : high;
  return _mm256_set_m128i(_mm_unpackhi_epi8(first, second), _mm_unpacklo_epi8(first, second));
}

// Writes 32 values of 16 bits.
template <bool kHighFirst>
RP_INLINE void look_up_halves(const void* values, const std::uint8_t* codes, void* to) {
  const __m256i each = codes_of<kHighFirst>(codes);
#ifdef __AVX512BW__
  const __m512i table = _mm512_castsi256_si512(_mm256_load_si256(static_cast<const __m256i*>(values)));
  _mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_cvtepu8_epi16(each), table));
#else
  // A look-up instruction returns bytes: one for the lower halves of the values, one for the upper.
  const auto* halves = static_cast<const __m128i*>(values);
  const __m128i even = _mm_set1_epi16(0xff);
  const __m128i lower = _mm_packus_epi16(_mm_and_si128(halves[0], even), _mm_and_si128(halves[1], even));
  const __m128i upper = _mm_packus_epi16(_mm_srli_epi16(halves[0], 8), _mm_srli_epi16(halves[1], 8));
  const __m256i low = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(lower), each);
  const __m256i high = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(upper), each);
  const __m256i a = _mm256_unpacklo_epi8(low, high), b = _mm256_unpackhi_epi8(low, high);
  auto* results = static_cast<__m256i*>(to);
  _mm256_storeu_si256(results, _mm256_permute2x128_si256(a, b, 0x20));
  _mm256_storeu_si256(results + 1, _mm256_permute2x128_si256(a, b, 0x31));
#endif
}
template <bool kHighFirst>
RP_INLINE void look_up(const BlockValues<Bf16>& values, const std::uint8_t* codes, Bf16* to) {
  look_up_halves<kHighFirst>(values.at, codes, to);
}
template <bool kHighFirst>
RP_INLINE void look_up(const BlockValues<Fp16>& values, const std::uint8_t* codes, Fp16* to) {
  look_up_halves<kHighFirst>(values.at, codes, to);
}
#endif

template <bool kHighFirst>
RP_INLINE int code_at(const std::uint8_t* codes, std::int64_t i) {
  return (i % 2 == 0) == kHighFirst ? codes[i / 2] >> 4 : codes[i / 2] & 0xf;
}

template <typename Format, typename T>
void expand_blocks(const QuantisedMatrix& m, T* to, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t block = i / Format::kBlock, stop = smaller(end, (block + 1) * Format::kBlock);
    const float scale = Format::scale(m, block);
    BlockValues<T> values;
#pragma GCC unroll 1  // GCC would not vectorise what it has unrolled
    for (int code = 0; code < 16; ++code) narrow(Format::kCodes.at[code] * scale, values.at[code]);
    if (stop - i == Format::kBlock) {
      for (; i < stop; i += 32) look_up<Format::kHighFirst>(values, m.codes + i / 2, to + i);
    } else {
      for (; i < stop; ++i) to[i] = values.at[code_at<Format::kHighFirst>(m.codes, i)];
    }
  }
}

// An fp32 number has 20 bits of fraction more, and a bias that is larger by 120. Where the fp8 number
// is subnormal, so is the fp32 number before the product, which is exact.
RP_INLINE float widen_fp8(std::uint8_t code) {
  const std::uint32_t magnitude = code & 0x7fU, sign = (code & 0x80U) << 24;
  const float value = float_of(magnitude << 20 | sign) * 0x1p120F;
  return magnitude == 0x7f ? float_of(0x7fc00000U | sign) : value;
}

template <typename T>
void expand_fp8(const QuantisedMatrix& m, T* to, std::int64_t begin, std::int64_t end) {
  const bool has_blocks = m.format == WeightFormat::kFp8Blocks;
  const std::int64_t height = has_blocks ? kFp8Side : m.rows, width = has_blocks ? kFp8Side : m.columns;
  const std::int64_t blocks_of_row = (m.columns + width - 1) / width;
  for (std::int64_t row = begin / m.columns; row * m.columns < end; ++row) {
    const std::int64_t first = row * m.columns;  // the row's first element
    const float* scales = static_cast<const float*>(m.scales) + row / height * blocks_of_row;
    const std::int64_t stop = smaller(end, first + m.columns);
    for (std::int64_t block = 0; block < blocks_of_row; ++block) {
      const std::int64_t block_begin = first + block * width, block_end = smaller(stop, block_begin + width);
      const float scale = scales[block];
      for (std::int64_t i = block_begin < begin ? begin : block_begin; i < block_end; ++i) {
        narrow(widen_fp8(m.codes[i]) * scale, to[i]);
      }
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
