#include "cuda/kernels/kernels.h"
#include "cuda/kernels/launch.cuh"

namespace rp::cuda {

using models::AddRmsNormRows;
using models::Element;
using models::GpuRmsNormGradRows;
using models::RmsNormRows;

namespace {

constexpr unsigned kThreads = 256;
// Packs of columns of a row that one thread keeps the weight's gradient of. Rows of more columns take several blocks, each
// of which forms the row's sum anew.
constexpr int kPacksOfThread = 4;
// Blocks that a multiprocessor holds at least: registers for that many, or ptxas saves a few more and spills.
constexpr int kBlocks = 4;

template <typename T, bool kAligned, bool kAdd>
__global__ void __launch_bounds__(kThreads, kBlocks) rms_norm_rows(AddRmsNormRows a, std::int64_t rows) {
  const T* weight = static_cast<const T*>(a.weight);
  // What is normalised: x itself, or the sum, which the thread that wrote it reads again.
  const T* normalised = static_cast<const T*>(kAdd ? a.sum : a.x);
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const std::int64_t first = row * a.columns;
    float squares = 0;
    for (std::int64_t i = std::int64_t{threadIdx.x} * kPack<T>; i < a.columns; i += kThreads * kPack<T>) {
      const std::int64_t left = a.columns - i;
      Pack<T> x = load<kAligned>(static_cast<const T*>(a.x) + first + i, left);
      if constexpr (kAdd) {
        const Pack<T> residual = load<kAligned>(static_cast<const T*>(a.residual) + first + i, left);
#pragma unroll
        for (int k = 0; k < kPack<T>; ++k) x.at[k] = rounded<T>(x.at[k] + residual.at[k]);
        store<kAligned>(static_cast<T*>(a.sum) + first + i, left, x);
      }
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k) squares += x.at[k] * x.at[k];
    }
    const float mean = block_sum<kThreads>(squares) / static_cast<float>(a.columns);
    const float rstd = 1.0F / sqrtf(mean + a.epsilon);
    if (threadIdx.x == 0) a.rstd[row] = rstd;
    for (std::int64_t i = std::int64_t{threadIdx.x} * kPack<T>; i < a.columns; i += kThreads * kPack<T>) {
      const std::int64_t left = a.columns - i;
      Pack<T> y = load<kAligned>(normalised + first + i, left);
      const Pack<T> w = load<kAligned>(weight + i, left);
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k) y.at[k] = w.at[k] * rounded<T>(y.at[k] * rstd);
      store<kAligned>(static_cast<T*>(a.y) + first + i, left, y);
    }
  }
}

// Block (x, y) takes the rows of partial sum x; of the columns, the y-th kThreads * kPacksOfThread packs.
template <typename T, bool kAligned, bool kAdd>
__global__ void __launch_bounds__(kThreads) rms_norm_grad_rows(GpuRmsNormGradRows a, std::int64_t rows) {
  const std::int64_t first_column = (std::int64_t{blockIdx.y} * kPacksOfThread * kThreads + threadIdx.x) * kPack<T>;
  const std::int64_t num_sums = divide_up(rows, models::kGpuRowsPerSum);
  for (std::int64_t sum = blockIdx.x; sum < num_sums; sum += gridDim.x) {
    Pack<T> grad_weight[kPacksOfThread] = {};
    const std::int64_t end = sum + 1 < num_sums ? (sum + 1) * models::kGpuRowsPerSum : rows;
    for (std::int64_t row = sum * models::kGpuRowsPerSum; row < end; ++row) {
      const T* x = static_cast<const T*>(a.x) + row * a.columns;
      const T* grad_y = static_cast<const T*>(a.grad_y) + row * a.columns;
      const T* weight = static_cast<const T*>(a.weight);
      const float rstd = a.rstd[row];
      float products = 0;
      for (std::int64_t i = std::int64_t{threadIdx.x} * kPack<T>; i < a.columns; i += kThreads * kPack<T>) {
        const std::int64_t left = a.columns - i;
        const Pack<T> value = load<kAligned>(x + i, left), grad = load<kAligned>(grad_y + i, left);
        const Pack<T> w = load<kAligned>(weight + i, left);
#pragma unroll
        for (int k = 0; k < kPack<T>; ++k) products += grad.at[k] * w.at[k] * (value.at[k] * rstd);
      }
      const float mean = block_sum<kThreads>(products) / static_cast<float>(a.columns);
#pragma unroll
      for (int j = 0; j < kPacksOfThread; ++j) {
        const std::int64_t i = first_column + std::int64_t{j} * kThreads * kPack<T>;
        const std::int64_t left = a.columns - i;
        if (left <= 0) continue;
        const Pack<T> value = load<kAligned>(x + i, left), grad = load<kAligned>(grad_y + i, left);
        const Pack<T> w = load<kAligned>(weight + i, left);
        Pack<T> grad_x;
        if constexpr (kAdd) {
          grad_x = load<kAligned>(static_cast<const T*>(a.grad_sum) + row * a.columns + i, left);
        } else {
          grad_x = {};
        }
#pragma unroll
        for (int k = 0; k < kPack<T>; ++k) {
          const float normal = value.at[k] * rstd;
          grad_weight[j].at[k] += grad.at[k] * rounded<T>(normal);
          grad_x.at[k] += (grad.at[k] * w.at[k] - normal * mean) * rstd;
        }
        store<kAligned>(static_cast<T*>(a.grad_x) + row * a.columns + i, left, grad_x);
      }
    }
#pragma unroll
    for (int j = 0; j < kPacksOfThread; ++j) {
      const std::int64_t i = first_column + std::int64_t{j} * kThreads * kPack<T>;
      if (i < a.columns) store_floats<kAligned>(a.partial_sums + sum * a.columns + i, a.columns - i, grad_weight[j]);
    }
  }
}

// total[c] = the sum of partial_sums[.][c]. A block takes kWarp columns; warp w adds the partial sums w, w + 8, …
constexpr unsigned kWarps = kThreads / kWarp;
__global__ void __launch_bounds__(kThreads)
    add_row_sums(const float* partial_sums, float* total, std::int64_t num_sums, std::int64_t columns) {
  __shared__ float of_warp[kWarps][kWarp];
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (std::int64_t first = std::int64_t{blockIdx.x} * kWarp; first < columns; first += std::int64_t{gridDim.x} * kWarp) {
    const std::int64_t column = first + lane;
    float sum = 0;
    if (column < columns) {
#pragma unroll 4
      for (std::int64_t i = warp; i < num_sums; i += kWarps) sum += partial_sums[i * columns + column];
    }
    __syncthreads();  // the last columns' sums are read
    of_warp[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || column >= columns) continue;
    for (unsigned w = 1; w < kWarps; ++w) sum += of_warp[w][lane];
    total[column] = sum;
  }
}

template <bool kAdd>
void launch_rms_norm(Element element, const AddRmsNormRows& call, std::int64_t rows, void* stream) {
  with_element(element, [&](auto type) {
    using T = decltype(type);
    const bool aligned = rows_are_aligned<T>(call.columns) &&
                         are_aligned({call.x, call.residual, call.weight, call.sum, call.y});
    with_condition(aligned, [&](auto is_aligned) {
      launch("rms_norm", rms_norm_rows<T, decltype(is_aligned)::value, kAdd>, {.blocks = rows, .threads = kThreads}, stream,
             call, rows);
    });
  });
}

template <bool kAdd>
void launch_rms_norm_grad(Element element, const GpuRmsNormGradRows& call, std::int64_t rows, void* stream) {
  const std::int64_t num_sums = models::num_row_sums(rows);
  with_element(element, [&](auto type) {
    using T = decltype(type);
    const Grid grid = {.blocks = num_sums,
                       .threads = kThreads,
                       .blocks_y = divide_up(call.columns, std::int64_t{kPack<T>} * kPacksOfThread * kThreads)};
    const bool aligned = rows_are_aligned<T>(call.columns) &&
                         are_aligned({call.grad_y, call.grad_sum, call.x, call.weight, call.grad_x, call.partial_sums});
    with_condition(aligned, [&](auto is_aligned) {
      launch("rms_norm_grad", rms_norm_grad_rows<T, decltype(is_aligned)::value, kAdd>, grid, stream, call, rows);
    });
  });
  // Without rows the total is 0, and is written.
  launch("add_row_sums", add_row_sums, {.blocks = divide_up(call.columns, kWarp), .threads = kThreads}, stream,
         call.partial_sums, call.grad_weight, num_sums, call.columns);
}

}  // namespace

void rms_norm(Element element, const RmsNormRows& call, std::int64_t rows, void* stream) {
  const AddRmsNormRows plain = {.x = call.x,
                                .residual = nullptr,
                                .weight = call.weight,
                                .sum = nullptr,
                                .y = call.y,
                                .rstd = call.rstd,
                                .columns = call.columns,
                                .epsilon = call.epsilon};
  launch_rms_norm<false>(element, plain, rows, stream);
}

void add_rms_norm(Element element, const AddRmsNormRows& call, std::int64_t rows, void* stream) {
  launch_rms_norm<true>(element, call, rows, stream);
}

void rms_norm_grad(Element element, const GpuRmsNormGradRows& call, std::int64_t rows, void* stream) {
  call.grad_sum == nullptr ? launch_rms_norm_grad<false>(element, call, rows, stream)
                           : launch_rms_norm_grad<true>(element, call, rows, stream);
}

}  // namespace rp::cuda
