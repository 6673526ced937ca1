// kernels/quantised_weights.h
// Describes frozen weights that are stored with 4 or 8 bits each: the formats, their constants, and
// the places of a parameter's parts. Design: docs/design/quantised-weights.md.
//
// A parameter has the shape [matrices, rows, columns]. Each matrix is quantised alone, with its
// elements in row-major order; so one expert's part of a file is one matrix here. The value of an
// element is computed in fp32 and then rounded once to the dtype that is asked for.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/check.h"

namespace rp {

enum class WeightFormat : std::uint8_t {
  // bitsandbytes' NF4: blocks of kNf4Block consecutive elements, which run over row ends; the last
  // one may be short. value = kNf4Codes[code] * scale; one fp32 scale for each block. Element 2 j is
  // the high half of byte j. The unused half of an odd number of elements is not read.
  kNf4,
  // The same with 8-bit scales: scale = kNestedMap[byte] * nested_scale + offset, one fp32 nested
  // scale for kNestedBlock blocks, one fp32 offset for the matrix.
  kNf4Double,
  // MXFP4 of the OCP Microscaling Formats 1.0: blocks of kMxfp4Block elements of a row, value =
  // kMxfp4Codes[code] * 2^(scale - 127). A scale is a byte; 255 makes the block NaN. Element 2 j is
  // the low half of byte j. REQUIRES: columns is a multiple of kMxfp4Block.
  kMxfp4,
  // 8-bit floats: 4 bits of exponent with bias 7, 3 of fraction, no infinities, 0x7f and 0xff are NaN.
  // value = fp8 * scale; one fp32 scale for each square of kFp8Side x kFp8Side elements of a matrix,
  // [ceil(rows / kFp8Side), ceil(columns / kFp8Side)].
  kFp8Blocks,
  kFp8Tensor,  // the same with one fp32 scale for the matrix
};

inline constexpr std::int64_t kNf4Block = 64;
inline constexpr std::int64_t kNestedBlock = 256;
inline constexpr std::int64_t kMxfp4Block = 32;
inline constexpr std::int64_t kFp8Side = 128;
inline constexpr float kLargestFp8 = 448;

// The values of the sixteen 4-bit codes, in a struct because code for GPUs copies them.
struct HalfByteCodes {
  float at[16];
};
inline constexpr HalfByteCodes kNf4Codes = {
    {-1.0F, -0.6961928009986877F, -0.5250730514526367F, -0.39491748809814453F, -0.28444138169288635F,
     -0.18477343022823334F, -0.09105003625154495F, 0.0F, 0.07958029955625534F, 0.16093020141124725F,
     0.24611230194568634F, 0.33791524171829224F, 0.44070982933044434F, 0.5626170039176941F, 0.7229568362236023F, 1.0F}};
inline constexpr HalfByteCodes kMxfp4Codes = {{0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0F, -0.5, -1, -1.5, -2, -3, -4, -6}};

// The ascending values of the 256 bytes of a nested scale: bitsandbytes' dynamic map.
struct NestedMap {
  float at[256];
};

// For e from 0 to 6, [0.1, 1] is cut into 2^e equal pieces; their centres times 10^(e - 6) and their
// negatives are values, and so are 0 and 1. fp32, with the roundings of bitsandbytes' computation.
constexpr NestedMap make_nested_map() {
  constexpr float kPowersOfTen[] = {1e-6F, 1e-5F, 1e-4F, 1e-3F, 1e-2F, 1e-1F, 1e0F};
  constexpr float kFirst = 0.1F;
  NestedMap map{};
  int place = 128;
  for (int e = 0; e < 7; ++e) {
    const int pieces = 1 << e;
    const double step = static_cast<double>((1.0F - kFirst) / static_cast<float>(pieces));
    const auto border = [=](int i) {  // counted from the nearer end
      return static_cast<float>(2 * i < pieces ? double{kFirst} + step * i : 1.0 - step * (pieces - i));
    };
    for (int i = 0; i < pieces; ++i, ++place) {
      map.at[place] = (border(i) + border(i + 1)) / 2 * kPowersOfTen[e];
      map.at[254 - place] = -map.at[place];
    }
  }
  map.at[127] = 0;
  map.at[255] = 1;
  return map;
}
inline constexpr NestedMap kNestedMap = make_nested_map();

// The sizes of a quantised parameter. All functions count for one matrix.
struct QuantisedShape {
  WeightFormat format = WeightFormat::kNf4;
  std::int64_t matrices = 1;
  std::int64_t rows = 0;
  std::int64_t columns = 0;

  [[nodiscard]] constexpr std::int64_t num_elements() const { return rows * columns; }
  [[nodiscard]] constexpr std::int64_t code_bytes() const {
    return is_fp8() ? num_elements() : (num_elements() + 1) / 2;
  }
  [[nodiscard]] constexpr std::int64_t num_scales() const {
    switch (format) {
      case WeightFormat::kNf4:
      case WeightFormat::kNf4Double: return (num_elements() + kNf4Block - 1) / kNf4Block;
      case WeightFormat::kMxfp4: return num_elements() / kMxfp4Block;
      case WeightFormat::kFp8Blocks: return (rows + kFp8Side - 1) / kFp8Side * ((columns + kFp8Side - 1) / kFp8Side);
      case WeightFormat::kFp8Tensor: return 1;
    }
    return 0;
  }
  [[nodiscard]] constexpr std::int64_t scale_bytes() const { return num_scales() * (has_byte_scales() ? 1 : 4); }
  [[nodiscard]] constexpr std::int64_t num_nested_scales() const {
    return format == WeightFormat::kNf4Double ? (num_scales() + kNestedBlock - 1) / kNestedBlock : 0;
  }
  [[nodiscard]] constexpr std::int64_t num_offsets() const { return format == WeightFormat::kNf4Double ? 1 : 0; }

 private:
  [[nodiscard]] constexpr bool is_fp8() const {
    return format == WeightFormat::kFp8Blocks || format == WeightFormat::kFp8Tensor;
  }
  [[nodiscard]] constexpr bool has_byte_scales() const {
    return format == WeightFormat::kNf4Double || format == WeightFormat::kMxfp4;
  }
};

// The places of a parameter's parts in one array, in bytes from its beginning: the codes of all
// matrices (at 0), then their scales, nested scales and offsets. Each part begins at a multiple of
// kPartAlignment; within a part the matrices follow each other without gaps.
inline constexpr std::uint64_t kPartAlignment = 64;
struct QuantisedLayout {
  constexpr explicit QuantisedLayout(const QuantisedShape& shape)
      : scales(aligned(shape.matrices * shape.code_bytes())),
        nested_scales(scales + aligned(shape.matrices * shape.scale_bytes())),
        offsets(nested_scales + aligned(shape.matrices * shape.num_nested_scales() * 4)),
        num_bytes(offsets + aligned(shape.matrices * shape.num_offsets() * 4)) {
    // Written out instead of RP_ASSERT for the reason in kernels/cuda/launch.cuh.
    if (shape.format == WeightFormat::kMxfp4 && shape.columns % kMxfp4Block != 0) {
      fail_assertion("columns % kMxfp4Block == 0", "kernels/quantised_weights.h", __LINE__);
    }
  }

  std::uint64_t scales;
  std::uint64_t nested_scales;
  std::uint64_t offsets;
  std::uint64_t num_bytes;  // of the whole array

 private:
  static constexpr std::uint64_t aligned(std::int64_t bytes) {
    return (static_cast<std::uint64_t>(bytes) + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
  }
};

// A quantised parameter in memory. `bytes` has the layout QuantisedLayout(shape) and is aligned to
// at least 4 bytes.
struct QuantisedWeights {
  QuantisedShape shape;
  const std::byte* bytes = nullptr;
};

// The parts of one matrix, which kernels read. Nested scales and offset exist only for kNf4Double.
struct QuantisedMatrix {
  WeightFormat format = WeightFormat::kNf4;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  const std::uint8_t* codes = nullptr;
  const void* scales = nullptr;  // fp32, or bytes
  const float* nested_scales = nullptr;
  const float* offset = nullptr;
};

// Returns the parts of a matrix of a parameter.
[[nodiscard]] inline QuantisedMatrix matrix_of(const QuantisedWeights& weights, std::int64_t matrix) {
  const QuantisedShape& shape = weights.shape;
  const QuantisedLayout layout(shape);
  const auto* nested = reinterpret_cast<const float*>(weights.bytes + layout.nested_scales);
  return {.format = shape.format,
          .rows = shape.rows,
          .columns = shape.columns,
          .codes = reinterpret_cast<const std::uint8_t*>(weights.bytes) + matrix * shape.code_bytes(),
          .scales = weights.bytes + layout.scales + matrix * shape.scale_bytes(),
          .nested_scales = nested + matrix * shape.num_nested_scales(),
          .offset = reinterpret_cast<const float*>(weights.bytes + layout.offsets) + matrix * shape.num_offsets()};
}

}  // namespace rp
