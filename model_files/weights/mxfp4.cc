#include "model_files/weights/mxfp4.h"

#include <array>
#include <bit>
#include <cmath>

namespace rp {
namespace {

constexpr std::size_t kHalves = 16;
using Halves = std::array<std::uint16_t, kHalves>;

// Returns the bf16 number of each half of a byte, for each scale.
const std::array<Halves, 256>& table() {
  static const std::array<Halves, 256> kTable = [] {
    constexpr std::array<float, kHalves> kE2M1 = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0F, -0.5, -1, -1.5, -2, -3, -4, -6};
    std::array<Halves, 256> filled{};
    for (std::size_t scale = 0; scale < filled.size(); ++scale) {
      for (std::size_t half = 0; half < kHalves; ++half) {
        const float value = std::ldexp(kE2M1[half], static_cast<int>(scale) - 127);
        filled[scale][half] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
      }
    }
    return filled;
  }();
  return kTable;
}

}  // namespace

void decode_mxfp4(const std::uint8_t* blocks, const std::uint8_t* scales, std::int64_t num_blocks,
                  std::uint16_t* bf16) {
  const std::array<Halves, 256>& numbers = table();
  for (std::int64_t block = 0; block < num_blocks; ++block) {
    const Halves& scaled = numbers[scales[block]];
    for (std::int64_t i = 0; i < kMxfp4BlockElements / 2; ++i) {
      const std::uint8_t byte = *blocks++;
      *bf16++ = scaled[byte & 0xF];
      *bf16++ = scaled[byte >> 4];
    }
  }
}

}  // namespace rp
