// kernels/cuda/delta_slice.cuh
// A slice of the columns of a state of the gated delta rule, which one block of threads carries from
// chunk to chunk in shared memory.
#pragma once

#include <type_traits>

#include "kernels/cuda/delta_chunk.cuh"
#include "kernels/cuda/launch.cuh"

namespace rp::cuda {

// Slices of keys up to kKeys elements. They leave room for a second block on a multiprocessor of
// 100 KB.
template <int kKeys>
constexpr int kSlice = static_cast<int>(models::delta_slice(kKeys));

template <int kKeys>
using SliceSums = ProductSums<kSlice<kKeys>>;

// The value head and the slice of a block's turn. The blocks of the slices of a head are neighbours,
// because they read the same queries and keys.
struct SlicePlace {
  std::int64_t sequence, head, key_head, slice;
  std::int64_t first;  // column
  int columns;
};

template <int kKeys>
__device__ inline SlicePlace slice_of_turn(const GpuDeltaInputs& in, std::int64_t turn) {
  const std::int64_t slices = divide_up(in.value_size, kSlice<kKeys>), slice = turn % slices,
                     head = turn / slices % in.value_heads;
  const std::int64_t first = slice * kSlice<kKeys>, left = in.value_size - first;
  return {turn / slices / in.value_heads,
          head,
          head / (in.value_heads / in.key_heads),
          slice,
          first,
          static_cast<int>(left < kSlice<kKeys> ? left : kSlice<kKeys>)};
}

// Returns the rows of a slice in an array of values.
template <typename T>
__device__ inline ChunkRows<T> rows_of_slice(const void* x, std::int64_t stride, const GpuDeltaInputs& in,
                                             const DeltaPlace& place, const SlicePlace& slice) {
  return {static_cast<const T*>(x) + place.token * stride + slice.head * in.value_size + slice.first,
          static_cast<int>(stride), place.count, slice.columns};
}

// Returns where a slice begins in an array of one matrix with value_size columns per chunk.
__device__ inline std::int64_t slice_of_part(const GpuDeltaInputs& in, const DeltaPlace& place, std::int64_t rows,
                                             const SlicePlace& slice) {
  return place.part * rows * in.value_size + slice.first;
}

// Calls run(constant of 128 or 256) for the smallest slices that have room for these keys.
template <typename Run>
void with_key_size(const char* name, const GpuDeltaInputs& in, const Run& run) {
  if (in.key_size <= 128) return run(std::integral_constant<int, 128>());
  if (in.key_size > models::kMaxGpuKeySize)
    refuse_launch(name, {.threads = kProductThreads}, "its keys are too long", "256 elements are possible");
  run(std::integral_constant<int, static_cast<int>(models::kMaxGpuKeySize)>());
}

}  // namespace rp::cuda
