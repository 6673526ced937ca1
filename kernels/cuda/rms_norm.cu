#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_sums.cuh"

namespace rp::cuda {

using models::AddRmsNormRows;
using models::GpuRmsNormGradRows;
using models::RmsNormRows;

namespace {

constexpr unsigned kThreads = 256;
// The minimum number of blocks per multiprocessor. It allows registers for that many; otherwise
// ptxas would save a few more registers and spill.
constexpr int kBlocks = 4;

// How a kind of norm applies its weight. It is the same for all threads, so a branch costs nothing
// compared with memory accesses. Constructed on the host, so that it stays among the kernel's
// arguments and needs no registers.
struct NormFormula {
  explicit NormFormula(NormKind kind)
      : rounds(kind == NormKind::kRounded), offset(kind == NormKind::kOffset ? 1.0F : 0.0F) {}
  template <typename T>
  __device__ float value(float normal) const {
    return rounds ? rounded<T>(normal) : normal;
  }
  __device__ float factor(float weight) const { return weight + offset; }

  bool rounds;
  float offset;
};

template <typename T, bool kAligned, bool kAdd>
__global__ void __launch_bounds__(kThreads, kBlocks)
    rms_norm_rows(AddRmsNormRows a, std::int64_t rows, NormFormula formula) {
  const T* weight = static_cast<const T*>(a.weight);
  // The input of the norm: x itself, or the sum, which is read again by the thread that wrote it.
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
      for (int k = 0; k < kPack<T>; ++k) y.at[k] = formula.factor(w.at[k]) * formula.value<T>(y.at[k] * rstd);
      store<kAligned>(static_cast<T*>(a.y) + first + i, left, y);
    }
  }
}

// The gradient's blocks have one thread for each pack of a row, rounded to a power of two. With 64
// registers per thread, the maximum for blocks of kMaxThreads, 1024 threads fit on a multiprocessor
// for any size of block.
constexpr unsigned kMinThreads = 128, kMaxThreads = 1024;

template <typename T>
unsigned threads_of_row(std::int64_t columns) {
  unsigned threads = kMinThreads;
  while (threads < kMaxThreads && std::int64_t{threads} * kPack<T> < columns) threads *= 2;
  return threads;
}

// One thread's pack of a row, in the format of memory.
struct RowWords {
  uint4 x, grad_y, grad_sum;
  float rstd;
};

template <typename T, bool kAligned, bool kAdd>
__device__ inline RowWords load_row(const GpuRmsNormGradRows& a, std::int64_t row, std::int64_t column,
                                    std::int64_t left) {
  RowWords words = {};
  words.rstd = a.rstd[row];
  if (left <= 0) return words;
  const std::int64_t i = row * a.columns + column;
  words.x = load_words<kAligned>(static_cast<const T*>(a.x) + i, left);
  words.grad_y = load_words<kAligned>(static_cast<const T*>(a.grad_y) + i, left);
  if constexpr (kAdd) words.grad_sum = load_words<kAligned>(static_cast<const T*>(a.grad_sum) + i, left);
  return words;
}

// Returns sum + the terms of a pack.
template <typename T>
__device__ inline float add_products(float sum, uint4 x_words, uint4 grad_words, uint4 weight_words, float rstd,
                                     const NormFormula& formula) {
  const Pack<T> x = pack_of<T>(x_words), grad = pack_of<T>(grad_words), weight = pack_of<T>(weight_words);
#pragma unroll
  for (int k = 0; k < kPack<T>; ++k) sum += grad.at[k] * formula.factor(weight.at[k]) * (x.at[k] * rstd);
  return sum;
}

// Block (x, y) processes the rows of partial sum x, and of each row blockDim.x packs, starting at
// pack y * blockDim.x. Each thread has one pack, which stays in registers from the row's sum to its
// gradient. If a row has more packs, each block computes the row's sum over all of them. The next
// row is loaded before the threads wait for each other's sums, so that a load is always in
// progress. The formula's rounding is a template parameter, because a choice at run time would need
// the last registers.
template <typename T, bool kAligned, bool kAdd, bool kRounds>
__global__ void __launch_bounds__(kMaxThreads)
    rms_norm_grad_rows(GpuRmsNormGradRows a, std::int64_t rows, std::int64_t rows_per_sum, NormFormula formula) {
  __shared__ float of_warp[2][kMaxThreads / kWarp];  // for even and odd rows, so that one barrier per row is enough
  unsigned parity = 0;
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t step = std::int64_t{blockDim.x} * kPack<T>;
  const std::int64_t first = std::int64_t{threadIdx.x} * kPack<T>, column = blockIdx.y * step + first;
  const bool has_columns = column < a.columns;
  // Aligned rows are multiples of a pack.
  const std::int64_t left = !has_columns ? 0 : kAligned ? kPack<T> : a.columns - column;
  const T* all_weights = static_cast<const T*>(a.weight);
  const uint4 weight_words = has_columns ? load_words<kAligned>(all_weights + column, left) : uint4{};
  const std::int64_t num_sums = divide_up(rows, rows_per_sum);
  for (std::int64_t sum = blockIdx.x; sum < num_sums; sum += gridDim.x) {
    Pack<T> grad_weight = {};
    const std::int64_t end = sum + 1 < num_sums ? (sum + 1) * rows_per_sum : rows;
    RowWords words = load_row<T, kAligned, kAdd>(a, sum * rows_per_sum, column, left);
    for (std::int64_t row = sum * rows_per_sum; row < end; ++row) {
      float products = 0;
      for (std::int64_t i = first; i < a.columns; i += step) {
        if (i == column) {
          products = add_products<T>(products, words.x, words.grad_y, weight_words, words.rstd, formula);
          continue;
        }
        const std::int64_t left_here = kAligned ? kPack<T> : a.columns - i;
        products =
            add_products<T>(products, load_words<kAligned>(static_cast<const T*>(a.x) + row * a.columns + i, left_here),
                            load_words<kAligned>(static_cast<const T*>(a.grad_y) + row * a.columns + i, left_here),
                            load_words<kAligned>(all_weights + i, left_here), words.rstd, formula);
      }
      RowWords next = {};
      if (row + 1 < end) next = load_row<T, kAligned, kAdd>(a, row + 1, column, left);
      products = warp_sum(products);
      if (lane == 0) of_warp[parity][warp] = products;
      __syncthreads();
      const float mean =
          warp_sum(lane < blockDim.x / kWarp ? of_warp[parity][lane] : 0.0F) / static_cast<float>(a.columns);
      parity ^= 1;
      if (has_columns) {
        const Pack<T> x = pack_of<T>(words.x), grad = pack_of<T>(words.grad_y), weight = pack_of<T>(weight_words);
        Pack<T> grad_x = pack_of<T>(words.grad_sum);
#pragma unroll
        for (int k = 0; k < kPack<T>; ++k) {
          const float normal = x.at[k] * words.rstd;
          grad_weight.at[k] += grad.at[k] * (kRounds ? rounded<T>(normal) : normal);
          grad_x.at[k] += (grad.at[k] * formula.factor(weight.at[k]) - normal * mean) * words.rstd;
        }
        store<kAligned>(static_cast<T*>(a.grad_x) + row * a.columns + column, left, grad_x);
      }
      words = next;
    }
    if (has_columns) store_floats<kAligned>(a.partial_sums + sum * a.columns + column, left, grad_weight);
  }
}

template <bool kAdd>
void launch_rms_norm(DType dtype, const AddRmsNormRows& call, std::int64_t rows, void* stream) {
  with_element(dtype, [&](auto type) {
    using T = decltype(type);
    const bool aligned =
        rows_are_aligned<T>(call.columns) && are_aligned({call.x, call.residual, call.weight, call.sum, call.y});
    with_condition(aligned, [&](auto is_aligned) {
      launch("rms_norm", rms_norm_rows<T, decltype(is_aligned)::value, kAdd>, {.blocks = rows, .threads = kThreads},
             stream, call, rows, NormFormula(call.kind));
    });
  });
}

template <bool kAdd>
void launch_rms_norm_grad(DType dtype, const GpuRmsNormGradRows& call, std::int64_t rows, void* stream) {
  const std::int64_t num_sums = models::num_row_sums(rows);
  with_element(dtype, [&](auto type) {
    using T = decltype(type);
    const unsigned threads = threads_of_row<T>(call.columns);
    const Grid grid = {
        .blocks = num_sums, .threads = threads, .blocks_y = divide_up(call.columns, std::int64_t{kPack<T>} * threads)};
    const bool aligned = rows_are_aligned<T>(call.columns) &&
                         are_aligned({call.grad_y, call.grad_sum, call.x, call.weight, call.grad_x, call.partial_sums});
    with_condition(aligned, [&](auto is_aligned) {
      with_condition(call.kind == NormKind::kRounded, [&](auto rounds) {
        launch("rms_norm_grad", rms_norm_grad_rows<T, decltype(is_aligned)::value, kAdd, decltype(rounds)::value>, grid,
               stream, call, rows, models::rows_per_sum(rows), NormFormula(call.kind));
      });
    });
  });
  launch_row_sums(call.partial_sums, call.grad_weight, num_sums, call.columns, stream);
}

}  // namespace

void rms_norm(DType dtype, const RmsNormRows& call, std::int64_t rows, void* stream) {
  const AddRmsNormRows plain = {.x = call.x,
                                .residual = nullptr,
                                .weight = call.weight,
                                .sum = nullptr,
                                .y = call.y,
                                .rstd = call.rstd,
                                .columns = call.columns,
                                .epsilon = call.epsilon,
                                .kind = call.kind};
  launch_rms_norm<false>(dtype, plain, rows, stream);
}

void add_rms_norm(DType dtype, const AddRmsNormRows& call, std::int64_t rows, void* stream) {
  launch_rms_norm<true>(dtype, call, rows, stream);
}

void rms_norm_grad(DType dtype, const GpuRmsNormGradRows& call, std::int64_t rows, void* stream) {
  call.grad_sum == nullptr ? launch_rms_norm_grad<false>(dtype, call, rows, stream)
                           : launch_rms_norm_grad<true>(dtype, call, rows, stream);
}

}  // namespace rp::cuda
