// kernels/cpu/float16.h
// Converts the two 16-bit float formats from and to fp32, as bit patterns. Every conversion to 16
// bits rounds to the nearest value, ties to even, keeps denormals, and overflows to infinity, as
// PyTorch does.
#pragma once

#include <bit>
#include <cstdint>

namespace rp {

// Exact: bf16 is the upper half of an fp32.
inline float float_from_bf16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

// Every NaN becomes the quiet NaN 0x7fc0, as c10::BFloat16 does.
inline std::uint16_t bf16_from_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return 0x7fc0;
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

// IEEE half precision (1 sign bit, 5 exponent bits, 10 fraction bits). Exact. A NaN stays a NaN and
// becomes quiet.
inline float float_from_fp16(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fU;
  const std::uint32_t fraction = bits & 0x3ffU;
  if (exponent == 0) {  // zero or denormal: fraction * 2^-24, which is exact in fp32
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) {
    const std::uint32_t quiet = fraction == 0 ? 0U : 0x400000U;
    return std::bit_cast<float>(sign | 0x7f800000U | quiet | (fraction << 13));
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (fraction << 13));
}

// A NaN keeps its sign and the upper part of its payload and becomes quiet, as the F16C instructions do.
inline std::uint16_t fp16_from_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<std::uint16_t>(sign | 0x7e00U | ((magnitude >> 13) & 0x3ffU));
  if (magnitude >= 0x477ff000U) return static_cast<std::uint16_t>(sign | 0x7c00U);  // 65520 and up: infinity
  if (magnitude < 0x38800000U) {  // below 2^-14: denormal. At 0.5 the last bit of an fp32 is 2^-24, so adding rounds.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U));
  }
  const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

}  // namespace rp
