// kernels/cpu/quantised/elements.h
// Converts elements from and to fp32 without branches, so that compilers turn loops over elements
// into vector instructions. (The vectors of vector16.h are not used: where they are wider than the
// registers, GCC compiles their comparisons lane by lane, and quantisers compare.)
//
// Included only by sources that are compiled once per instruction set. So everything here has
// internal linkage and is inlined, and no inline function of another header is called.
#pragma once

#include <cstdint>

#define RP_INLINE inline __attribute__((always_inline))

namespace rp::models {
namespace {

struct Bf16 {
  std::uint16_t bits;
};
struct Fp16 {
  std::uint16_t bits;
};

RP_INLINE std::uint32_t bits_of(float value) { return __builtin_bit_cast(std::uint32_t, value); }
RP_INLINE float float_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }
RP_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

RP_INLINE float widen(float value) { return value; }
RP_INLINE float widen(Bf16 value) { return float_of(std::uint32_t{value.bits} << 16); }
RP_INLINE float widen(Fp16 value) {
  const std::uint32_t magnitude = value.bits & 0x7fffU;
  const std::uint32_t normal = (magnitude << 13) + (112U << 23);
  const std::uint32_t special = (magnitude << 13) | 0x7f800000U | (magnitude > 0x7c00U ? 0x400000U : 0U);
  const std::uint32_t subnormal = bits_of(static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24F);
  const std::uint32_t finite = magnitude < 0x400U ? subnormal : normal;
  return float_of((magnitude < 0x7c00U ? finite : special) | (value.bits & 0x8000U) << 16);
}

// Rounds to nearest, ties to even, as float16.h does.
RP_INLINE void narrow(float value, float& to) { to = value; }
RP_INLINE void narrow(float value, Bf16& to) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  to.bits = static_cast<std::uint16_t>(value == value ? rounded : 0x7fc0U);
}
RP_INLINE void narrow(float value, Fp16& to) {
  const std::uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffffU;
  const std::uint32_t normal = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  const std::uint32_t subnormal = bits_of(float_of(magnitude) + 0.5F) - 0x3f000000U;
  const std::uint32_t not_a_number = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
  const std::uint32_t large = magnitude > 0x7f800000U ? not_a_number : 0x7c00U;
  const std::uint32_t finite = magnitude < 0x38800000U ? subnormal : normal;
  to.bits = static_cast<std::uint16_t>((magnitude < 0x47800000U ? finite : large) | ((bits >> 16) & 0x8000U));
}

}  // namespace
}  // namespace rp::models
