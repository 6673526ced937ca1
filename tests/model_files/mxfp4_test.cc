#include "model_files/weights/mxfp4.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

namespace rp {
namespace {

// E2M1 by its definition: a sign, two bits of exponent with bias 1, one bit of mantissa. A value
// with exponent 0 is subnormal.
double e2m1(unsigned half) {
  const unsigned exponent = half >> 1 & 3, mantissa = half & 1;
  const double size = exponent == 0 ? 0.5 * mantissa : std::ldexp(1 + 0.5 * mantissa, static_cast<int>(exponent) - 1);
  return (half & 8) != 0 ? -size : size;
}

float as_float(std::uint16_t bf16) { return std::bit_cast<float>(static_cast<std::uint32_t>(bf16) << 16); }

TEST(Mxfp4, EveryByteWithEveryScaleIsTheTwoNumbersOfTheFormula) {
  for (int scale = 0; scale < 256; ++scale) {
    // 16 blocks of 16 bytes: all byte values in order.
    std::vector<std::uint8_t> blocks(256), scales(16, static_cast<std::uint8_t>(scale));
    for (std::size_t byte = 0; byte < 256; ++byte) blocks[byte] = static_cast<std::uint8_t>(byte);
    std::vector<std::uint16_t> numbers(512, 0x7fff);
    decode_mxfp4(blocks.data(), scales.data(), 16, numbers.data());
    for (unsigned byte = 0; byte < 256; ++byte) {
      for (const unsigned place : {0U, 1U}) {
        const unsigned half = place == 0 ? byte & 0xF : byte >> 4;
        const double expected = std::ldexp(e2m1(half), scale - 127);
        const float found = as_float(numbers[2 * byte + place]);
        if (std::abs(expected) < std::ldexp(1, 128)) {
          ASSERT_EQ(found, expected) << "byte " << byte << ", scale " << scale;
        } else {
          ASSERT_TRUE(std::isinf(found)) << "byte " << byte << ", scale " << scale;
        }
        ASSERT_EQ(std::signbit(found), (half & 8) != 0);
      }
    }
  }
}

TEST(Mxfp4, EachBlockHasItsOwnScale) {
  std::vector<std::uint8_t> blocks(32, 0x72);  // 1 and 6
  const std::vector<std::uint8_t> scales = {127, 130};
  std::vector<std::uint16_t> numbers(64);
  decode_mxfp4(blocks.data(), scales.data(), 2, numbers.data());
  EXPECT_EQ(as_float(numbers[0]), 1);
  EXPECT_EQ(as_float(numbers[31]), 6);
  EXPECT_EQ(as_float(numbers[32]), 8);
  EXPECT_EQ(as_float(numbers[63]), 48);
}

}  // namespace
}  // namespace rp
