// kernels/cpu/vector16.h
// Computes with sixteen fp32 values at once. It uses the compiler's vector extension (one AVX-512
// register, two of AVX2, four of SSE2), with the same bits on all of them.
//
// Included only by sources that are compiled once per instruction set. So everything here has
// internal linkage and is inlined, and no inline function of another header is called: the linker
// might keep the copy of the wrong set.
#pragma once

#include <cstdint>

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace rp::models {
namespace {

constexpr std::int64_t kLanes = 16;

using Floats = float __attribute__((vector_size(64)));
using Words = std::uint32_t __attribute__((vector_size(64)));
using Halves = std::uint16_t __attribute__((vector_size(32)));
// The same types in memory, at the address of any float or 16-bit number. clang ignores an alignment
// that is written behind the aliased type.
using FloatsInMemory [[gnu::aligned(4), gnu::may_alias]] = Floats;
using WordsInMemory [[gnu::aligned(2), gnu::may_alias]] = Words;
using WordInMemory [[gnu::aligned(2), gnu::may_alias]] = std::uint32_t;
using HalvesInMemory [[gnu::aligned(2), gnu::may_alias]] = Halves;
static_assert(alignof(FloatsInMemory) == 4 && alignof(WordsInMemory) == 2 && alignof(WordInMemory) == 2 &&
              alignof(HalvesInMemory) == 2);

struct Bf16 {
  std::uint16_t bits;
};
struct Fp16 {
  std::uint16_t bits;
};

#define RP_INLINE inline __attribute__((always_inline))

RP_INLINE Floats all(float value) { return Floats{} + value; }

// bf16 is the upper half of an fp32.
RP_INLINE Floats widen(Halves bits) { return reinterpret_cast<Floats>(__builtin_convertvector(bits, Words) << 16); }

// Rounds to nearest, ties to even; every NaN becomes the quiet NaN 0x7fc0, as in c10::BFloat16.
RP_INLINE Halves narrow(Floats value) {
  const Words bits = reinterpret_cast<Words>(value);
  const Words rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const Words result = value == value ? rounded : (Words{} + 0x7fc0U);
  return __builtin_convertvector(result, Halves);
}

#ifdef __AVX512F__
// gcc warns about the values that the functions without a mask leave undefined.
constexpr __mmask16 kAllLanes = 0xffff;
#endif

// Converts fp16 as the processor's own instructions do: subnormals are kept, rounding is to nearest
// with ties to even, and a NaN becomes quiet and keeps the bits that fit.
RP_INLINE Floats widen_fp16(Halves bits) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(_mm512_maskz_cvtph_ps(kAllLanes, reinterpret_cast<__m256i>(bits)));
#elif defined(__F16C__)
  struct Registers {
    __m128i low, high;
  };
  const auto halves = __builtin_bit_cast(Registers, bits);
  struct Wide {
    __m256 low, high;
  };
  return __builtin_bit_cast(Floats, (Wide{_mm256_cvtph_ps(halves.low), _mm256_cvtph_ps(halves.high)}));
#else
  const Words word = __builtin_convertvector(bits, Words);
  const Words magnitude = word & 0x7fffU;
  const Words normal = (magnitude << 13) + (112U << 23);
  // The bits of a subnormal count units of 2^-24, as do the last bits of a number in [0.5, 1).
  const Words subnormal = reinterpret_cast<Words>(reinterpret_cast<Floats>(magnitude | 0x3f000000U) - 0.5F);
  const Words special = (magnitude << 13) | 0x7f800000U | (magnitude > 0x7c00U ? Words{} + 0x400000U : Words{});
  const Words result = magnitude < 0x400U ? subnormal : (magnitude >= 0x7c00U ? special : normal);
  return reinterpret_cast<Floats>(result | ((word & 0x8000U) << 16));
#endif
}

RP_INLINE Halves narrow_fp16(Floats value) {
#if defined(__AVX512F__)
  return reinterpret_cast<Halves>(
      _mm512_maskz_cvtps_ph(kAllLanes, reinterpret_cast<__m512>(value), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  struct Wide {
    __m256 low, high;
  };
  const auto floats = __builtin_bit_cast(Wide, value);
  struct Registers {
    __m128i low, high;
  };
  return __builtin_bit_cast(Halves, (Registers{_mm256_cvtps_ph(floats.low, _MM_FROUND_TO_NEAREST_INT),
                                               _mm256_cvtps_ph(floats.high, _MM_FROUND_TO_NEAREST_INT)}));
#else
  const Words bits = reinterpret_cast<Words>(value);
  const Words magnitude = bits & 0x7fffffffU;
  const Words normal = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  const Words subnormal = reinterpret_cast<Words>(reinterpret_cast<Floats>(magnitude) + 0.5F) - 0x3f000000U;
  const Words not_a_number = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
  const Words large = magnitude > 0x7f800000U ? not_a_number : Words{} + 0x7c00U;
  const Words finite = magnitude < 0x38800000U ? subnormal : normal;
  const Words result = (magnitude >= 0x47800000U ? large : finite) | ((bits >> 16) & 0x8000U);
  return __builtin_convertvector(result, Halves);
#endif
}

RP_INLINE Floats load(const float* array) { return *reinterpret_cast<const FloatsInMemory*>(array); }
RP_INLINE Floats load(const Bf16* array) { return widen(*reinterpret_cast<const HalvesInMemory*>(array)); }
RP_INLINE Floats load(const Fp16* array) { return widen_fp16(*reinterpret_cast<const HalvesInMemory*>(array)); }
RP_INLINE void store(float* array, Floats value) { *reinterpret_cast<FloatsInMemory*>(array) = value; }
RP_INLINE void store(Bf16* array, Floats value) { *reinterpret_cast<HalvesInMemory*>(array) = narrow(value); }
RP_INLINE void store(Fp16* array, Floats value) { *reinterpret_cast<HalvesInMemory*>(array) = narrow_fp16(value); }

// Return the value as a store as T would round it.
RP_INLINE Floats rounded_to(Floats value, const float*) { return value; }
RP_INLINE Floats rounded_to(Floats value, const Bf16*) { return widen(narrow(value)); }
RP_INLINE Floats rounded_to(Floats value, const Fp16*) { return widen_fp16(narrow_fp16(value)); }

RP_INLINE Floats widen(Halves bits, const Bf16*) { return widen(bits); }
RP_INLINE Floats widen(Halves bits, const Fp16*) { return widen_fp16(bits); }

// Load or store only the first `count` lanes, where `count` is less than kLanes. A load sets the
// other lanes to `other`.
#if defined(__AVX512BW__) && defined(__AVX512VL__)
RP_INLINE __mmask16 first_lanes(std::int64_t count) { return static_cast<__mmask16>((1U << count) - 1U); }
RP_INLINE Floats load_some(const float* array, std::int64_t count, float other) {
  return reinterpret_cast<Floats>(_mm512_mask_loadu_ps(_mm512_set1_ps(other), first_lanes(count), array));
}
template <typename Half>
RP_INLINE Floats load_some(const Half* array, std::int64_t count, float other) {
  const auto bits = reinterpret_cast<Halves>(_mm256_maskz_loadu_epi16(first_lanes(count), array));
  const Floats value = widen(bits, array);
  return reinterpret_cast<Floats>(
      _mm512_mask_mov_ps(_mm512_set1_ps(other), first_lanes(count), reinterpret_cast<__m512>(value)));
}
RP_INLINE void store_some(float* array, Floats value, std::int64_t count) {
  _mm512_mask_storeu_ps(array, first_lanes(count), reinterpret_cast<__m512>(value));
}
RP_INLINE void store_some(Bf16* array, Floats value, std::int64_t count) {
  _mm256_mask_storeu_epi16(array, first_lanes(count), reinterpret_cast<__m256i>(narrow(value)));
}
RP_INLINE void store_some(Fp16* array, Floats value, std::int64_t count) {
  _mm256_mask_storeu_epi16(array, first_lanes(count), reinterpret_cast<__m256i>(narrow_fp16(value)));
}
#else
template <typename T>
RP_INLINE Floats load_some(const T* array, std::int64_t count, float other) {
  T lanes[kLanes] = {};
  for (std::int64_t k = 0; k < count; ++k) lanes[k] = array[k];
  Floats value = load(lanes);
  for (std::int64_t k = count; k < kLanes; ++k) value[k] = other;
  return value;
}
template <typename T>
RP_INLINE void store_some(T* array, Floats value, std::int64_t count) {
  T lanes[kLanes];
  store(lanes, value);
  for (std::int64_t k = 0; k < count; ++k) array[k] = lanes[k];
}
#endif

// Calls visit(first element, number of elements, Whole() or Partial()) for each group of sixteen
// elements of [begin, end). The third argument is a type, so that the common case of a whole group
// has no branches.
struct Whole {};
struct Partial {};
template <typename Visit>
RP_INLINE void for_each_sixteen(std::int64_t begin, std::int64_t end, const Visit& visit) {
  std::int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) visit(i, kLanes, Whole());
  if (i < end) visit(i, end - i, Partial());
}
template <typename T>
RP_INLINE Floats load(const T* array, std::int64_t, float, Whole) {
  return load(array);
}
template <typename T>
RP_INLINE Floats load(const T* array, std::int64_t count, float other, Partial) {
  return load_some(array, count, other);
}
template <typename T>
RP_INLINE void store(T* array, Floats value, std::int64_t, Whole) {
  store(array, value);
}
template <typename T>
RP_INLINE void store(T* array, Floats value, std::int64_t count, Partial) {
  store_some(array, value, count);
}

// Adds the lanes in order, 0 + 1 + … + 15.
RP_INLINE float sum(Floats value) {
  float total = value[0];
  for (int k = 1; k < kLanes; ++k) total += value[k];
  return total;
}
RP_INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }
RP_INLINE float largest(Floats value) {
  value =
      larger(value, __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15));
  value = larger(value, __builtin_shufflevector(value, value, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7));
  value = larger(value, __builtin_shufflevector(value, value, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3));
  return value[1] > value[0] ? value[1] : value[0];
}

// Returns exp(x) to 2 units in the last place: x = n ln 2 + r, a polynomial of degree 6 in r (the
// coefficients of Cephes' expf), times 2^n. Below -87.3 (the smallest normal fp32) the result is 0,
// above 88.3 it stays at exp(88.3).
RP_INLINE Floats exponential(Floats x) {
  const Floats clamped_above = x > 88.3F ? all(88.3F) : x;
  const Floats clamped = clamped_above < -87.3F ? all(-87.3F) : clamped_above;
  // Adding 1.5 * 2^23 rounds to an integer, which is then stored in the low bits.
  const Floats magic = all(12582912.0F);
  const Floats shifted = clamped * 1.44269504F + magic;
  const Floats n = shifted - magic;
  const Floats r = (clamped - n * 0.693359375F) - n * -2.12194440e-4F;
  Floats p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  const Words power = (reinterpret_cast<Words>(shifted) + 127U) << 23;
  const Floats result = p * reinterpret_cast<Floats>(power);
  return x < -87.3F ? Floats{} : result;
}

RP_INLINE Floats sigmoid(Floats x) { return 1.0F / (1.0F + exponential(-x)); }

}  // namespace
}  // namespace rp::models
