// kernels/cuda/row_sums.cuh
// Adds the partial sums that the blocks of a kernel have written.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace rp::cuda {

// total[c] = the sum of partial_sums[.][c]. A block processes kWarp columns; warp w adds the
// partial sums w, w + 16, …
constexpr unsigned kSumThreads = 512, kSumWarps = kSumThreads / kWarp;
static __global__ void __launch_bounds__(kSumThreads)
    add_row_sums(const float* partial_sums, float* total, std::int64_t num_sums, std::int64_t columns) {
  __shared__ float of_warp[kSumWarps][kWarp];
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (std::int64_t first = std::int64_t{blockIdx.x} * kWarp; first < columns;
       first += std::int64_t{gridDim.x} * kWarp) {
    const std::int64_t column = first + lane;
    float sum = 0;
    if (column < columns) {
#pragma unroll 8
      for (std::int64_t i = warp; i < num_sums; i += kSumWarps) sum += partial_sums[i * columns + column];
    }
    __syncthreads();  // the sums of the previous columns have been read
    of_warp[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || column >= columns) continue;
    for (unsigned w = 1; w < kSumWarps; ++w) sum += of_warp[w][lane];
    total[column] = sum;
  }
}

// Enqueues add_row_sums(). Without partial sums the total is 0 and is still written.
inline void launch_row_sums(const float* partial_sums, float* total, std::int64_t num_sums, std::int64_t columns,
                            void* stream) {
  launch("add_row_sums", add_row_sums, {.blocks = divide_up(columns, kWarp), .threads = kSumThreads}, stream,
         partial_sums, total, num_sums, columns);
}

}  // namespace rp::cuda
