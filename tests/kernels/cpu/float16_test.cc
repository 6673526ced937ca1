#include "kernels/cpu/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace rp {
namespace {

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }
std::uint32_t to_bits(float value) { return std::bit_cast<std::uint32_t>(value); }

// Returns the nearer of two neighbours, whose bits are `low` and `low` + 1; ties go to the even
// one. The neighbour after the largest value is infinity, whose bits are those that the next value
// would have.
std::uint16_t nearest(double magnitude, std::uint32_t low, double low_value, double next_value) {
  const double below = magnitude - low_value;
  const double above = next_value - magnitude;
  const bool up = above < below || (above == below && low % 2 == 1);
  return static_cast<std::uint16_t>(low + (up ? 1 : 0));
}

TEST(Bf16, ConversionToFp32IsTheUpperHalf) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    ASSERT_EQ(to_bits(float_from_bf16(static_cast<std::uint16_t>(bits))), bits << 16);
  }
}

TEST(Bf16, EveryUpperHalfRoundsToTheNearestValueWithTiesToEven) {
  for (std::uint32_t upper = 0; upper <= 0xffff; ++upper) {
    const std::uint32_t magnitude = upper & 0x7fffU;
    if (magnitude >= 0x7f80) continue;  // infinity and NaN are tested below
    const double low = static_cast<double>(from_bits(magnitude << 16));
    const double next = magnitude == 0x7f7f ? 0x1p128 : static_cast<double>(from_bits((magnitude + 1) << 16));
    for (const std::uint32_t lower : {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      const float value = from_bits(upper << 16 | lower);
      const std::uint32_t expected = (upper & 0x8000U) | nearest(std::fabs(double{value}), magnitude, low, next);
      ASSERT_EQ(bf16_from_float(value), expected) << std::hex << upper << " " << lower;
    }
  }
}

TEST(Bf16, InfinityStaysAndEveryNanBecomesTheOneOfPyTorch) {
  EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::infinity()), 0x7f80);
  EXPECT_EQ(bf16_from_float(-std::numeric_limits<float>::infinity()), 0xff80);
  for (const std::uint32_t sign : {0U, 0x80000000U}) {
    for (std::uint32_t upper = 0; upper < 0x80; ++upper) {
      for (const std::uint32_t lower : {0x0000U, 0x0001U, 0xffffU}) {
        const std::uint32_t payload = upper << 16 | lower;
        if (payload == 0) continue;
        ASSERT_EQ(bf16_from_float(from_bits(sign | 0x7f800000U | payload)), 0x7fc0);
      }
    }
  }
}

double fp16_value(std::uint32_t magnitude) {
  const int exponent = static_cast<int>(magnitude >> 10);
  const double fraction = static_cast<double>(magnitude & 0x3ffU);
  return exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
}

TEST(Fp16, EveryValueConvertsToFp32AndBack) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const std::uint32_t magnitude = bits & 0x7fffU;
    const float value = float_from_fp16(static_cast<std::uint16_t>(bits));
    if (magnitude > 0x7c00) {
      ASSERT_TRUE(std::isnan(value));
      ASSERT_EQ(fp16_from_float(value), bits | 0x200U);
      continue;
    }
    const double expected = magnitude == 0x7c00 ? std::numeric_limits<double>::infinity() : fp16_value(magnitude);
    ASSERT_EQ(std::fabs(double{value}), expected) << std::hex << bits;
    ASSERT_EQ(std::signbit(value), bits >> 15 == 1);
    ASSERT_EQ(fp16_from_float(value), bits);
  }
}

TEST(Fp16, ValuesBetweenTwoNeighboursRoundToTheNearestWithTiesToEven) {
  for (std::uint32_t low = 0; low < 0x7c00; ++low) {
    const double low_value = fp16_value(low);
    const double next_value = fp16_value(low + 1);  // for the largest value the formula returns 65536
    const float tie = static_cast<float>((low_value + next_value) / 2);
    for (const float value : {std::nextafter(tie, 0.0F), tie, std::nextafter(tie, 1e9F)}) {
      const std::uint16_t expected = nearest(double{value}, low, low_value, next_value);
      ASSERT_EQ(fp16_from_float(value), expected) << std::hex << low;
      ASSERT_EQ(fp16_from_float(-value), expected | 0x8000U);
    }
  }
  EXPECT_EQ(fp16_from_float(1e30F), 0x7c00);
  EXPECT_EQ(fp16_from_float(1e-30F), 0);
}

TEST(Fp16, ANanStaysANanAndBecomesQuiet) {
  EXPECT_EQ(fp16_from_float(from_bits(0x7f800001)), 0x7e00);
  EXPECT_EQ(fp16_from_float(from_bits(0xffc12345)), 0xfe09);
  EXPECT_EQ(fp16_from_float(from_bits(0x7fffffff)), 0x7fff);
}

}  // namespace
}  // namespace rp
