#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_sums.cuh"

namespace rp::cuda {

using models::GpuGatedNorm;
using models::GpuGatedNormGrad;

namespace {

constexpr unsigned kThreads = 256, kWarps = kThreads / kWarp;
constexpr unsigned kRows = static_cast<unsigned>(models::kRowsOfGatedNorm);

// Returns 1 / sqrt(mean(o^2) + epsilon) in each lane.
template <typename T>
__device__ inline float reciprocal_length(const T* o, std::int64_t columns, float epsilon) {
  float squares = 0;
  for (std::int64_t c = threadIdx.x % kWarp; c < columns; c += kWarp) squares += widen(o[c]) * widen(o[c]);
  return 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(columns) + epsilon);
}

// One warp per row.
template <typename T>
__global__ void __launch_bounds__(kThreads) gated_norm_rows(GpuGatedNorm a, std::int64_t rows) {
  const T* weight = static_cast<const T*>(a.weight);
  const std::int64_t step = std::int64_t{gridDim.x} * kWarps;
  for (std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; row < rows; row += step) {
    const T *o = static_cast<const T*>(a.o) + row * a.columns, *z = static_cast<const T*>(a.z) + row * a.columns;
    T* y = static_cast<T*>(a.y) + row * a.columns;
    const float rstd = reciprocal_length(o, a.columns, a.epsilon);
    for (std::int64_t c = threadIdx.x % kWarp; c < a.columns; c += kWarp) {
      const float scaled = rounded<T>(widen(weight[c]) * rounded<T>(widen(o[c]) * rstd)), gate = widen(z[c]);
      y[c] = narrow<T>(scaled * (gate * sigmoid(gate)));
    }
  }
}

// What the gradient of a row needs of all its columns.
struct RowSums {
  float rstd, mean;  // the mean of the products of the normalised row and its gradient
};

template <typename T>
__device__ inline RowSums sums_of_row(const GpuGatedNormGrad& a, std::int64_t row) {
  const std::int64_t columns = a.forward.columns, at = row * columns;
  const T *o = static_cast<const T*>(a.forward.o) + at, *z = static_cast<const T*>(a.forward.z) + at,
          *grad_y = static_cast<const T*>(a.grad_y) + at, *weight = static_cast<const T*>(a.forward.weight);
  const float rstd = reciprocal_length(o, columns, a.forward.epsilon);
  float products = 0;
  for (std::int64_t c = threadIdx.x % kWarp; c < columns; c += kWarp) {
    const float gate = widen(z[c]);
    products += widen(grad_y[c]) * (gate * sigmoid(gate)) * widen(weight[c]) * (widen(o[c]) * rstd);
  }
  return {rstd, warp_sum(products) / static_cast<float>(columns)};
}

// A block processes kRows rows, first their sums, one warp per row; then kWarp columns at a time,
// one for each lane, where a warp adds the gradients of the weight by its rows. What is read twice
// comes from the cache.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    gated_norm_grad_rows(GpuGatedNormGrad a, std::int64_t rows, std::int64_t num_sums) {
  __shared__ RowSums of_row[kRows];
  __shared__ float of_warp[kWarps][kWarp];
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t columns = a.forward.columns;
  for (std::int64_t sum = blockIdx.x; sum < num_sums; sum += gridDim.x) {
    const std::int64_t first = sum * kRows;
    const auto count = static_cast<unsigned>(rows - first < kRows ? rows - first : kRows);
    for (unsigned r = warp; r < count; r += kWarps) {
      const RowSums sums = sums_of_row<T>(a, first + r);
      if (lane == 0) of_row[r] = sums;
    }
    __syncthreads();
    for (std::int64_t column = lane; column - lane < columns; column += kWarp) {
      const float weight = column < columns ? widen(static_cast<const T*>(a.forward.weight)[column]) : 0.0F;
      float grad_weight = 0;
      for (unsigned r = warp; r < count && column < columns; r += kWarps) {
        const std::int64_t at = (first + r) * columns + column;
        const float normal = widen(static_cast<const T*>(a.forward.o)[at]) * of_row[r].rstd;
        const float gate = widen(static_cast<const T*>(a.forward.z)[at]),
                    grad = widen(static_cast<const T*>(a.grad_y)[at]);
        const float grad_scaled = grad * (gate * sigmoid(gate));
        grad_weight += grad_scaled * rounded<T>(normal);
        static_cast<T*>(a.grad_o)[at] = narrow<T>((grad_scaled * weight - normal * of_row[r].mean) * of_row[r].rstd);
        static_cast<T*>(a.grad_z)[at] = narrow<T>(grad * rounded<T>(weight * rounded<T>(normal)) * silu_slope(gate));
      }
      of_warp[warp][lane] = grad_weight;
      __syncthreads();
      if (warp == 0 && column < columns) {
        for (unsigned w = 1; w < kWarps; ++w) grad_weight += of_warp[w][lane];
        a.partial_sums[sum * columns + column] = grad_weight;
      }
      __syncthreads();  // the warps' gradients have been read, and after the last columns the sums of rows
    }
  }
}

}  // namespace

void gated_norm(DType dtype, const GpuGatedNorm& call, std::int64_t rows, void* stream) {
  with_element(dtype, [&](auto type) {
    launch("gated_norm", gated_norm_rows<decltype(type)>, {.blocks = divide_up(rows, kWarps), .threads = kThreads},
           stream, call, rows);
  });
}

void gated_norm_grad(DType dtype, const GpuGatedNormGrad& call, std::int64_t rows, void* stream) {
  const std::int64_t num_sums = models::num_gated_norm_sums(rows);
  with_element(dtype, [&](auto type) {
    launch("gated_norm_grad", gated_norm_grad_rows<decltype(type)>, {.blocks = num_sums, .threads = kThreads}, stream,
           call, rows, num_sums);
  });
  launch_row_sums(call.partial_sums, call.grad_weight, num_sums, call.forward.columns, stream);
}

}  // namespace rp::cuda
