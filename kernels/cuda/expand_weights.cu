#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"

namespace rp::cuda {

namespace {

constexpr unsigned kThreads = 256;

__device__ const HalfByteCodes kNf4Values = kNf4Codes;
__device__ const HalfByteCodes kMxfp4Values = kMxfp4Codes;
__device__ const NestedMap kNestedValues = kNestedMap;

// A parameter: its first matrix, and what follows for each matrix.
struct Weights {
  QuantisedMatrix first;
  std::int64_t matrices, code_bytes, num_scales, num_nested_scales;
  void* values;
};

template <typename T>
__device__ inline T* values_of(const Weights& a, std::int64_t matrix) {
  return static_cast<T*>(a.values) + matrix * a.first.rows * a.first.columns;
}

// The formats with 4-bit codes. scale() returns the scale of a block of a matrix.
struct Nf4 {
  static constexpr std::int64_t kBlock = kNf4Block;
  static constexpr bool kHighFirst = true;
  static __device__ float value(unsigned code) { return kNf4Values.at[code]; }
  static __device__ float scale(const Weights& a, std::int64_t matrix, std::int64_t block) {
    return static_cast<const float*>(a.first.scales)[matrix * a.num_scales + block];
  }
};
struct Nf4Double : Nf4 {
  static __device__ float scale(const Weights& a, std::int64_t matrix, std::int64_t block) {
    const unsigned byte = static_cast<const std::uint8_t*>(a.first.scales)[matrix * a.num_scales + block];
    const float nested = a.first.nested_scales[matrix * a.num_nested_scales + block / kNestedBlock];
    return kNestedValues.at[byte] * nested + a.first.offset[matrix];
  }
};
struct Mxfp4 {
  static constexpr std::int64_t kBlock = kMxfp4Block;
  static constexpr bool kHighFirst = false;
  static __device__ float value(unsigned code) { return kMxfp4Values.at[code]; }
  static __device__ float scale(const Weights& a, std::int64_t matrix, std::int64_t block) {
    const std::uint32_t exponent = static_cast<const std::uint8_t*>(a.first.scales)[matrix * a.num_scales + block];
    return __uint_as_float(exponent == 0     ? 0x00400000U  // 2^-127, a subnormal number
                           : exponent == 255 ? 0x7fc00000U
                                             : exponent << 23);
  }
};

// Loads the codes of a pack: kBytes bytes, of which `left` are in the array, the first one lowest.
template <bool kAligned, int kBytes>
__device__ inline std::uint64_t load_codes(const std::uint8_t* from, std::int64_t left) {
  if constexpr (kAligned) {
    if constexpr (kBytes == 8) return *reinterpret_cast<const std::uint64_t*>(from);
    if constexpr (kBytes == 4) return *reinterpret_cast<const std::uint32_t*>(from);
    return *reinterpret_cast<const std::uint16_t*>(from);
  }
  std::uint64_t codes = 0;
#pragma unroll
  for (int k = 0; k < kBytes; ++k) {
    if (k < left) codes |= std::uint64_t{from[k]} << (8 * k);
  }
  return codes;
}

// blockIdx.y is the matrix. A pack is a part of one block of the format, so its scale is read once.
// The codes' values are read from shared memory, where sixteen floats are in different banks.
template <typename T, bool kAligned, typename Format>
__global__ void __launch_bounds__(kThreads) expand_half_bytes(Weights a) {
  __shared__ float value_of[16];
  if (threadIdx.x < 16) value_of[threadIdx.x] = Format::value(threadIdx.x);
  __syncthreads();
  const std::int64_t matrix = blockIdx.y, elements = a.first.rows * a.first.columns;
  const std::uint8_t* from = a.first.codes + matrix * a.code_bytes;
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads * kPack<T>;
  for (std::int64_t i = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kPack<T>; i < elements; i += stride) {
    const std::int64_t left = elements - i;
    const std::uint64_t codes = load_codes<kAligned, kPack<T> / 2>(from + i / 2, (left + 1) / 2);
    const float scale = Format::scale(a, matrix, i / Format::kBlock);
    Pack<T> values;
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) {
      const int half = (k % 2 == 0) == Format::kHighFirst ? 4 : 0;
      values.at[k] = value_of[codes >> (k / 2 * 8 + half) & 0xf] * scale;
    }
    store<kAligned>(values_of<T>(a, matrix) + i, left, values);
  }
}

// As in kernels/cpu/quantised/expand_loops.h.
__device__ inline float widen_fp8(std::uint32_t code) {
  const std::uint32_t magnitude = code & 0x7fU, sign = (code & 0x80U) << 24;
  return magnitude == 0x7f ? __uint_as_float(0x7fc00000U) : __uint_as_float(magnitude << 20 | sign) * 0x1p120F;
}

// Block (x, y) processes blockDim.x packs of the columns of its rows, in all matrices. A pack is a
// part of one square, so its scale is read once.
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads) expand_fp8_rows(Weights a) {
  const bool has_blocks = a.first.format == WeightFormat::kFp8Blocks;
  const std::int64_t columns = a.first.columns, squares_of_row = divide_up(columns, kFp8Side);
  const std::int64_t i = (std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kPack<T>, left = columns - i;
  if (left <= 0) return;
  for (std::int64_t matrix = 0; matrix < a.matrices; ++matrix) {
    const float* scales = static_cast<const float*>(a.first.scales) + matrix * a.num_scales;
    for (std::int64_t row = blockIdx.x; row < a.first.rows; row += gridDim.x) {
      const std::int64_t at = row * columns + i;
      const std::uint64_t codes = load_codes<kAligned, kPack<T>>(a.first.codes + matrix * a.code_bytes + at, left);
      const float scale = scales[has_blocks ? row / kFp8Side * squares_of_row + i / kFp8Side : 0];
      Pack<T> values;
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k) {
        values.at[k] = widen_fp8(static_cast<std::uint32_t>(codes >> (8 * k))) * scale;
      }
      store<kAligned>(values_of<T>(a, matrix) + at, left, values);
    }
  }
}

template <typename T, typename Format>
void launch_half_bytes(const Weights& weights, bool aligned, void* stream) {
  const std::int64_t elements = weights.first.rows * weights.first.columns;
  const Grid grid = {.blocks = divide_up(elements, std::int64_t{kThreads} * kPack<T>),
                     .threads = kThreads,
                     .blocks_y = weights.matrices};
  with_condition(aligned && rows_are_aligned<T>(elements), [&](auto is_aligned) {
    launch("expand_weights", expand_half_bytes<T, decltype(is_aligned)::value, Format>, grid, stream, weights);
  });
}

template <typename T>
void launch_fp8(const Weights& weights, bool aligned, void* stream) {
  const std::int64_t packs = divide_up(weights.first.columns, kPack<T>), blocks = divide_up(packs, kThreads);
  if (blocks == 0) return;
  const Grid grid = {.blocks = weights.first.rows,
                     .threads = static_cast<unsigned>(divide_up(divide_up(packs, blocks), kWarp)) * kWarp,
                     .blocks_y = blocks};
  with_condition(aligned && rows_are_aligned<T>(weights.first.columns), [&](auto is_aligned) {
    launch("expand_weights", expand_fp8_rows<T, decltype(is_aligned)::value>, grid, stream, weights);
  });
}

}  // namespace

void expand_weights(DType dtype, const QuantisedWeights& call, void* values, void* stream) {
  const QuantisedShape& shape = call.shape;
  const Weights weights = {matrix_of(call, 0),        shape.matrices, shape.code_bytes(), shape.num_scales(),
                           shape.num_nested_scales(), values};
  const bool aligned = are_aligned({call.bytes, values});
  with_element(dtype, [&](auto type) {
    using T = decltype(type);
    switch (shape.format) {
      case WeightFormat::kNf4: return launch_half_bytes<T, Nf4>(weights, aligned, stream);
      case WeightFormat::kNf4Double: return launch_half_bytes<T, Nf4Double>(weights, aligned, stream);
      case WeightFormat::kMxfp4: return launch_half_bytes<T, Mxfp4>(weights, aligned, stream);
      case WeightFormat::kFp8Blocks:
      case WeightFormat::kFp8Tensor: return launch_fp8<T>(weights, aligned, stream);
    }
  });
}

}  // namespace rp::cuda
