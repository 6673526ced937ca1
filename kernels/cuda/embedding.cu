#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"

namespace rp::cuda {

using models::EmbedGradRows;
using models::EmbedRows;

namespace {

constexpr unsigned kThreads = 256;
constexpr int kBlocks = 4;  // as in rms_norm.cu

// Block (x, y) processes kThreads packs of the columns of its rows, starting at pack y * kThreads.
template <typename T>
__device__ inline std::int64_t first_column() {
  return (std::int64_t{blockIdx.y} * kThreads + threadIdx.x) * kPack<T>;
}

template <typename T>
Grid grid_for(std::int64_t rows, std::int64_t columns) {
  return {.blocks = rows, .threads = kThreads, .blocks_y = divide_up(columns, std::int64_t{kThreads} * kPack<T>)};
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads) embed_rows(EmbedRows a, std::int64_t count) {
  const std::int64_t i = first_column<T>();
  if (i >= a.columns) return;
  for (std::int64_t row = blockIdx.x; row < count; row += gridDim.x) {
    const std::int64_t id = a.ids[row];
    Pack<T> values;
    if (id >= 0 && id < a.vocabulary) {
      values = load<kAligned>(static_cast<const T*>(a.weight) + id * a.columns + i, a.columns - i);
    } else {
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k) values.at[k] = NAN;
    }
    store<kAligned>(static_cast<T*>(a.y) + row * a.columns + i, a.columns - i, values);
  }
}

// The block of the first of several equal ids adds the rows of all of them; the others do nothing.
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads, kBlocks) embed_grad_rows(EmbedGradRows a, std::int64_t count) {
  const std::int64_t i = first_column<T>();
  if (i >= a.columns) return;
  const std::int64_t left = a.columns - i;
  for (std::int64_t first = blockIdx.x; first < count; first += gridDim.x) {
    const std::int64_t id = a.sorted_ids[first];
    if (first > 0 && a.sorted_ids[first - 1] == id) continue;
    if (id == a.padding_id || id < 0 || id >= a.vocabulary) continue;
    // Since the end is known beforehand, rows are loaded while others are added.
    std::int64_t end = first + 1;
    while (end < count && a.sorted_ids[end] == id) ++end;
    Pack<T> sum = {};
#pragma unroll 4
    for (std::int64_t j = first; j < end; ++j) {
      const Pack<T> grad = load<kAligned>(static_cast<const T*>(a.grad_y) + a.places[j] * a.columns + i, left);
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k) sum.at[k] += grad.at[k];
    }
    float* target = a.grad_weight + id * a.columns + i;
    Pack<T> total = load_floats<T, kAligned>(target, left);
#pragma unroll
    for (int k = 0; k < kPack<T>; ++k) total.at[k] += sum.at[k];
    store_floats<kAligned>(target, left, total);
  }
}

}  // namespace

void embed(DType dtype, const EmbedRows& call, std::int64_t count, void* stream) {
  with_element(dtype, [&](auto type) {
    using T = decltype(type);
    const bool aligned = rows_are_aligned<T>(call.columns) && are_aligned({call.weight, call.y});
    with_condition(aligned, [&](auto is_aligned) {
      launch("embed", embed_rows<T, decltype(is_aligned)::value>, grid_for<T>(count, call.columns), stream, call,
             count);
    });
  });
}

void embed_grad(DType dtype, const EmbedGradRows& call, std::int64_t count, void* stream) {
  with_element(dtype, [&](auto type) {
    using T = decltype(type);
    const bool aligned = rows_are_aligned<T>(call.columns) && are_aligned({call.grad_y, call.grad_weight});
    with_condition(aligned, [&](auto is_aligned) {
      launch("embed_grad", embed_grad_rows<T, decltype(is_aligned)::value>, grid_for<T>(count, call.columns), stream,
             call, count);
    });
  });
}

}  // namespace rp::cuda
