// kernels/cuda/block_product.cuh
// Products of small fp32 matrices by a block of 256 threads: 64 rows, and 64, 32 or 16 columns. No
// tensor-core product has the precision of fp32, so they are made with fmaf().
//
// An operand is a function of its line (a row of the left matrix or a column of the right one) and
// of the depth k. It returns 0 after the end of either. Steps of the depth are copied to shared
// memory; the next step is loaded while one is multiplied. Each element is one sum in the order of
// the depth.
#pragma once

#include "kernels/cuda/device.cuh"

namespace rp::cuda {

constexpr unsigned kProductThreads = 256;
constexpr int kProductRows = 64;
constexpr int kDepthOfStep = 16;

// One step of an operand. Lines are padded, so that 4 of them are loaded at once and writes along
// the depth reach different banks.
struct StepTile {
  alignas(16) float at[kDepthOfStep][kProductRows + 4];
};

// The elements of a result that a thread computes: 4 rows, and 1 to 4 columns.
template <int kColumns>
struct ProductSums {
  static constexpr int kWidth = kColumns / 16;

  __device__ static int row(int r) { return static_cast<int>(threadIdx.x / 16) * 4 + r; }
  __device__ static int column(int c) { return static_cast<int>(threadIdx.x % 16) * kWidth + c; }

  float at[4][kWidth];
};

// Calls run(row, column, sum) for each of the thread's elements.
template <int kColumns, typename Run>
__device__ inline void for_each_sum(ProductSums<kColumns>& sums, const Run& run) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
#pragma unroll
    for (int c = 0; c < ProductSums<kColumns>::kWidth; ++c) run(sums.row(r), sums.column(c), sums.at[r][c]);
  }
}

// Returns the sum of a value over the 16 threads that have elements of the same rows.
__device__ inline float sum_of_row(float value) {
#pragma unroll
  for (int step = 8; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

// A thread's share of one step of an operand with kLines lines. kAlongDepth: neighbours in memory
// follow each other along the depth, otherwise along the lines.
template <int kLines, bool kAlongDepth>
struct StepShare {
  static constexpr int kCount = kLines * kDepthOfStep / static_cast<int>(kProductThreads);

  template <typename Operand>
  __device__ void load(const Operand& operand, int first) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = operand(line(i), first + depth(i));
  }
  __device__ void store(StepTile& tile) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) tile.at[depth(i)][line(i)] = values[i];
  }

  __device__ static int index(int i) { return i * static_cast<int>(kProductThreads) + static_cast<int>(threadIdx.x); }
  __device__ static int line(int i) { return kAlongDepth ? index(i) / kDepthOfStep : index(i) % kLines; }
  __device__ static int depth(int i) { return kAlongDepth ? index(i) % kDepthOfStep : index(i) / kLines; }

  float values[kCount];
};

template <int kWidth>
__device__ inline void load_numbers(float (&to)[kWidth], const float* from) {
  if constexpr (kWidth == 4) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  } else if constexpr (kWidth == 2) {
    const float2 two = *reinterpret_cast<const float2*>(from);
    to[0] = two.x, to[1] = two.y;
  } else {
    to[0] = *from;
  }
}

// Adds the products of one step. `right` is its first row, whose rows are `stride` apart.
template <int kColumns>
__device__ inline void add_step_of_product(ProductSums<kColumns>& sums, const StepTile& left, const float* right,
                                           int stride) {
#pragma unroll 4
  for (int k = 0; k < kDepthOfStep; ++k) {
    float a[4], b[ProductSums<kColumns>::kWidth];
    load_numbers(a, &left.at[k][sums.row(0)]);
    load_numbers(b, right + k * stride + sums.column(0));
    for_each_sum(sums, [&](int row, int column, float& sum) {
      sum = fmaf(a[row - sums.row(0)], b[column - sums.column(0)], sum);
    });
  }
}

// sums += left right, where `right` is a matrix in shared memory with kColumns columns and as many
// rows as whole steps have. Those after `depth` are finite. Every thread of the block must call it.
// It begins with a barrier, so `right` may have been written just before.
template <bool kAlongDepth, int kColumns, typename Left>
__device__ inline void add_product_with_shared(ProductSums<kColumns>& sums, StepTile& tile, int depth, const Left& left,
                                               const float* right) {
  StepShare<kProductRows, kAlongDepth> share;
  share.load(left, 0);
#pragma unroll 1
  for (int first = 0; first < depth; first += kDepthOfStep) {
    __syncthreads();  // the previous step has been multiplied
    share.store(tile);
    __syncthreads();
    if (first + kDepthOfStep < depth) share.load(left, first + kDepthOfStep);
    add_step_of_product(sums, tile, right + first * kColumns, kColumns);
  }
}

struct StepTiles {
  StepTile left, right;
};

// sums += left right, where both operands are functions. Every thread of the block must call it. The
// functions may read shared memory that no thread writes during the call and that was written
// before a barrier.
template <bool kLeftAlongDepth, bool kRightAlongDepth, int kColumns, typename Left, typename Right>
__device__ inline void add_product(ProductSums<kColumns>& sums, StepTiles& tiles, int depth, const Left& left,
                                   const Right& right) {
  StepShare<kProductRows, kLeftAlongDepth> of_left;
  StepShare<kColumns, kRightAlongDepth> of_right;
  of_left.load(left, 0);
  of_right.load(right, 0);
#pragma unroll 1
  for (int first = 0; first < depth; first += kDepthOfStep) {
    __syncthreads();  // the previous step has been multiplied
    of_left.store(tiles.left);
    of_right.store(tiles.right);
    __syncthreads();
    if (first + kDepthOfStep < depth) {
      of_left.load(left, first + kDepthOfStep);
      of_right.load(right, first + kDepthOfStep);
    }
    add_step_of_product(sums, tiles.left, tiles.right.at[0], kProductRows + 4);
  }
}

}  // namespace rp::cuda
