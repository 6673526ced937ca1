#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"

namespace rp::cuda {

using models::GpuCrossEntropyRows;
using models::LossSum;

namespace {

constexpr unsigned kThreads = 512;
constexpr unsigned kWarps = kThreads / kWarp;
constexpr unsigned kThreadsOfSum = 256;

// The largest of the logits seen so far, and the sum of exp(logit - largest) over all of them.
// Logits of -infinity add nothing, even if no other logit has been seen. NaN is never the largest,
// but it makes the sum NaN.
struct Exponentials {
  float largest = -INFINITY;
  float total = 0;
};

// Returns the factor that converts a sum relative to `largest` to one relative to `larger`.
__device__ inline float rescale(float largest, float larger) {
  return largest == larger ? 1.0F : expf(largest - larger);
}

__device__ inline Exponentials both(const Exponentials& a, const Exponentials& b) {
  const float largest = fmaxf(a.largest, b.largest);
  return {largest, a.total * rescale(a.largest, largest) + b.total * rescale(b.largest, largest)};
}

// Combines the values of all threads of a block and returns the result in each, as block_sum()
// does.
__device__ inline Exponentials over_block(Exponentials mine) {
  __shared__ float largest_of_warp[kWarps];
  __shared__ float total_of_warp[kWarps];
#pragma unroll
  for (unsigned step = kWarp / 2; step > 0; step /= 2) {
    const float largest = __shfl_xor_sync(kAllLanes, mine.largest, static_cast<int>(step));
    const float total = __shfl_xor_sync(kAllLanes, mine.total, static_cast<int>(step));
    mine = both(mine, {largest, total});
  }
  __syncthreads();  // the previous row's values have been read
  if (threadIdx.x % kWarp == 0) {
    largest_of_warp[threadIdx.x / kWarp] = mine.largest;
    total_of_warp[threadIdx.x / kWarp] = mine.total;
  }
  __syncthreads();
  Exponentials result = {largest_of_warp[0], total_of_warp[0]};
  for (unsigned i = 1; i < kWarps; ++i) result = both(result, {largest_of_warp[i], total_of_warp[i]});
  return result;
}

template <typename T, bool kAligned>
__device__ inline Exponentials exponentials_of_row(const T* logits, std::int64_t columns) {
  Exponentials mine;
  for (std::int64_t i = std::int64_t{threadIdx.x} * kPack<T>; i < columns; i += kThreads * kPack<T>) {
    const Pack<T> x = load<kAligned>(logits + i, columns - i, -INFINITY);
    float largest = mine.largest;
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) largest = fmaxf(largest, x.at[k]);
    float total = mine.total * rescale(mine.largest, largest);
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) total += x.at[k] == -INFINITY ? 0.0F : expf(x.at[k] - largest);
    mine = {largest, total};
  }
  return over_block(mine);
}

template <typename T, bool kAligned>
__device__ inline void zero_row(T* logits, std::int64_t columns) {
  for (std::int64_t i = std::int64_t{threadIdx.x} * kPack<T>; i < columns; i += kThreads * kPack<T>) {
    store<kAligned>(logits + i, columns - i, Pack<T>{});
  }
}

// One block per row. The label is the same for all threads of a block, and so is each branch on it.
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads) cross_entropy_rows(GpuCrossEntropyRows a, std::int64_t rows) {
  const float divisor = a.divisor == nullptr ? 1.0F : static_cast<float>(*a.divisor);
  const float scale = divisor > 0 ? 1.0F / divisor : 0.0F;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    T* logits = static_cast<T*>(a.logits) + row * a.columns;
    const std::int64_t label = a.labels[row];
    if (label < 0 || label >= a.columns) {
      if (threadIdx.x == 0) a.losses[row] = label == models::kIgnoredLabel ? 0.0F : NAN;
      if (threadIdx.x == 0 && a.log_sums != nullptr) a.log_sums[row] = 0.0F;
      if (a.with_gradient) zero_row<T, kAligned>(logits, a.columns);
      continue;
    }
    // Read before any thread overwrites it: no thread returns from exponentials_of_row() before all
    // have called it.
    const float at_label = widen(logits[label]);
    const Exponentials sum = exponentials_of_row<T, kAligned>(logits, a.columns);
    if (threadIdx.x == 0) a.losses[row] = logf(sum.total) - (at_label - sum.largest);
    const float log_sum = logf(sum.total) + sum.largest;
    if (threadIdx.x == 0 && a.log_sums != nullptr) a.log_sums[row] = log_sum;
    if (!a.with_gradient) continue;
    const float factor = (1 + 2 * a.z_loss * log_sum) * (scale / sum.total);
    for (std::int64_t i = std::int64_t{threadIdx.x} * kPack<T>; i < a.columns; i += kThreads * kPack<T>) {
      Pack<T> x = load<kAligned>(logits + i, a.columns - i);
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k) {
        x.at[k] = expf(x.at[k] - sum.largest) * factor - (i + k == label ? scale : 0.0F);
      }
      store<kAligned>(logits + i, a.columns - i, x);
    }
  }
}

// One block: thread t adds the losses t, t + 256, …
__global__ void __launch_bounds__(kThreadsOfSum) add_losses(LossSum a) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < a.count; i += kThreadsOfSum) sum += static_cast<double>(a.losses[i]);
  const double total = block_sum<kThreadsOfSum>(sum);
  if (threadIdx.x > 0) return;
  const float divisor = a.divisor == nullptr ? 1.0F : static_cast<float>(*a.divisor);
  *a.total = divisor > 0 ? static_cast<float>(total / static_cast<double>(divisor)) : NAN;
}

}  // namespace

void cross_entropy(DType dtype, const GpuCrossEntropyRows& call, std::int64_t rows, void* stream) {
  with_element(dtype, [&](auto type) {
    using T = decltype(type);
    const bool aligned = rows_are_aligned<T>(call.columns) && are_aligned({call.logits});
    with_condition(aligned, [&](auto is_aligned) {
      launch("cross_entropy", cross_entropy_rows<T, decltype(is_aligned)::value>, {.blocks = rows, .threads = kThreads},
             stream, call, rows);
    });
  });
}

void sum_losses(const LossSum& call, void* stream) {
  launch("sum_losses", add_losses, {.blocks = 1, .threads = kThreadsOfSum}, stream, call);
}

}  // namespace rp::cuda
