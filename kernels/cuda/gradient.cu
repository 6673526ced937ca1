#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"

namespace rp::cuda {

using models::RoundGradient;
using models::ScaleElements;

namespace {

constexpr unsigned kThreads = 256;

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads) scale_elements(ScaleElements a) {
  const float factor = *a.factor;
  if (factor == 1.0F) return;
  T* values = static_cast<T*>(a.values);
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads * kPack<T>;
  for (std::int64_t i = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kPack<T>; i < a.count; i += stride) {
    Pack<T> x = load<kAligned>(values + i, a.count - i);
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) x.at[k] *= factor;
    store<kAligned>(values + i, a.count - i, x);
  }
}

// Consumer GPUs execute 64 fp32 operations in the time of one fp64 operation, which would then be
// slower than the memory. So the squares of a pack are added in fp32 if none of them can leave its
// range; then only rounding is lost.
template <typename T>
__device__ inline double sum_of_squares(const Pack<T>& values) {
  float largest = 0, squares = 0;
#pragma unroll
  for (int k = 0; k < kPack<T>; ++k) {
    largest = fmaxf(largest, fabsf(values.at[k]));
    squares += values.at[k] * values.at[k];
  }
  if (squares == 0 && largest == 0) return 0;
  if (largest > 1e-12F && squares < 1e30F) return static_cast<double>(squares);  // also false for NaN
  double exact = 0;
  for (int k = 0; k < kPack<T>; ++k) exact += static_cast<double>(values.at[k]) * static_cast<double>(values.at[k]);
  return exact;
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads) round_elements(RoundGradient a) {
  const std::int64_t num_sums = divide_up(a.count, models::kGpuElementsPerSum);
  for (std::int64_t sum = blockIdx.x; sum < num_sums; sum += gridDim.x) {
    const std::int64_t begin = sum * models::kGpuElementsPerSum;
    const std::int64_t end = sum + 1 < num_sums ? begin + models::kGpuElementsPerSum : a.count;
    double squares = 0;
#pragma unroll 4
    for (std::int64_t i = begin + std::int64_t{threadIdx.x} * kPack<T>; i < end; i += kThreads * kPack<T>) {
      Pack<T> x = load_floats<T, kAligned>(a.from + i, end - i);
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k) x.at[k] = rounded<T>(x.at[k]);
      store<kAligned>(static_cast<T*>(a.to) + i, end - i, x);
      squares += sum_of_squares(x);
    }
    const double total = block_sum<kThreads>(squares);
    if (threadIdx.x == 0) a.partial_sums[sum] = total;
  }
}

// One block: thread t adds the partial sums t, t + 256, …
__global__ void __launch_bounds__(kThreads) add_square_sums(RoundGradient a) {
  const std::int64_t num_sums = divide_up(a.count, models::kGpuElementsPerSum);
  double sum = 0;
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < num_sums; i += kThreads) sum += a.partial_sums[i];
  const double total = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) *a.squares = total;
}

}  // namespace

void scale(DType dtype, const ScaleElements& call, void* stream) {
  with_element(dtype, [&](auto type) {
    using T = decltype(type);
    const Grid grid = {.blocks = divide_up(call.count, std::int64_t{kThreads} * kPack<T>), .threads = kThreads};
    with_condition(are_aligned({call.values}), [&](auto is_aligned) {
      launch("scale", scale_elements<T, decltype(is_aligned)::value>, grid, stream, call);
    });
  });
}

void round_gradient(DType dtype, const RoundGradient& call, void* stream) {
  with_element(dtype, [&](auto type) {
    using T = decltype(type);
    const Grid grid = {.blocks = models::num_square_sums(call.count), .threads = kThreads};
    with_condition(are_aligned({call.from, call.to}), [&](auto is_aligned) {
      launch("round_gradient", round_elements<T, decltype(is_aligned)::value>, grid, stream, call);
    });
  });
  launch("add_square_sums", add_square_sums, {.blocks = 1, .threads = kThreads}, stream, call);
}

}  // namespace rp::cuda
