// tests/kernels/quantised/random_weights.h
// Quantised parameters of random codes and scales, in all formats and in shapes around every border.
#pragma once

#include <cstddef>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "kernels/quantised_weights.h"
#include "tests/common/random_floats.h"

namespace rp {

inline constexpr DType kElementTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
inline constexpr WeightFormat kWeightFormats[] = {WeightFormat::kNf4, WeightFormat::kNf4Double, WeightFormat::kMxfp4,
                                                  WeightFormat::kFp8Blocks, WeightFormat::kFp8Tensor};

inline std::string text_of(const QuantisedShape& shape) {
  static constexpr const char* kNames[] = {"nf4", "nf4-double", "mxfp4", "fp8-blocks", "fp8-tensor"};
  return std::string(kNames[static_cast<int>(shape.format)]) + " " + std::to_string(shape.matrices) + " x " +
         std::to_string(shape.rows) + " x " + std::to_string(shape.columns);
}

// Returns shapes around the borders of blocks, of vectors and of the GPU's packs and blocks of threads.
inline std::vector<QuantisedShape> border_shapes(WeightFormat format) {
  if (format == WeightFormat::kMxfp4) {
    return {{format, 1, 1, 32}, {format, 1, 3, 64}, {format, 3, 5, 96}, {format, 2, 7, 1056}, {format, 1, 2, 4128}};
  }
  return {{format, 1, 1, 1},     {format, 1, 1, 63},   {format, 1, 1, 64},    {format, 2, 3, 65},  {format, 1, 2, 100},
          {format, 3, 127, 129}, {format, 2, 130, 24}, {format, 1, 257, 384}, {format, 1, 3, 4104}};
}

// Returns a parameter's bytes in QuantisedLayout: any codes (`with_nan`: also those of fp8's NaNs), and scales of the
// size that weights have. Gaps are not zero.
inline std::vector<std::byte> random_weights(const QuantisedShape& shape, unsigned seed, bool with_nan = false) {
  std::mt19937 generator(seed);
  NormalFloats normal(0.05F, 0.02F);
  const QuantisedLayout layout(shape);
  std::vector<std::byte> bytes(layout.num_bytes);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(generator());
  const auto is_nan = [](std::byte code) { return (code & std::byte{0x7f}) == std::byte{0x7f}; };
  const bool is_fp8 = shape.format == WeightFormat::kFp8Blocks || shape.format == WeightFormat::kFp8Tensor;
  for (std::uint64_t i = 0; is_fp8 && !with_nan && i < layout.scales; ++i) {
    if (is_nan(bytes[i])) bytes[i] = std::byte{0x41};
  }
  const auto fill_floats = [&](std::uint64_t at, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = normal(generator);
      std::memcpy(bytes.data() + at + 4 * i, &value, sizeof(float));
    }
  };
  const bool has_byte_scales = shape.scale_bytes() == shape.num_scales();
  for (std::int64_t i = 0; shape.format == WeightFormat::kMxfp4 && i < shape.matrices * shape.num_scales(); ++i) {
    bytes[layout.scales + i] = static_cast<std::byte>(110 + generator() % 30);
  }
  if (!has_byte_scales) fill_floats(layout.scales, shape.matrices * shape.num_scales());
  fill_floats(layout.nested_scales, shape.matrices * shape.num_nested_scales());
  fill_floats(layout.offsets, shape.matrices * shape.num_offsets());
  return bytes;
}

}  // namespace rp
