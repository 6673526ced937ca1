#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"

namespace rp::cuda {

using models::RotaryAngles;
using models::RotateRows;

namespace {

constexpr unsigned kThreads = 256;
constexpr std::int64_t kMaxItems = std::int64_t{1} << 31;  // packs of half a row, which are counted in 32 bits

template <typename T>
__global__ void __launch_bounds__(kThreads) fill_table(RotaryAngles a) {
  const std::int64_t count = a.length * a.half;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t position = i / a.half;
    const float angle = static_cast<float>(position) * a.frequencies[i % a.half];
    a.cosine[i] = rounded<T>(cosf(angle) * a.factor);
    a.sine[i] = rounded<T>(sinf(angle) * a.factor);
  }
}

// One block per row; its threads process the packs of the first halves of its heads' rotated parts,
// then those of the parts that are not rotated. kAligned: each half and each head is aligned too.
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads) rotate_rows(RotateRows a, std::int64_t rows) {
  const std::int64_t half = a.rotated / 2, rest = a.head_size - a.rotated;
  // 32 bits, because a 64-bit division needs a hundred instructions.
  const auto packs = static_cast<unsigned>(divide_up(half, kPack<T>));  // of a half
  const auto items = static_cast<unsigned>(a.heads) * packs;
  const auto rest_packs = static_cast<unsigned>(divide_up(rest, kPack<T>));
  const unsigned rest_items = a.x == a.y ? 0 : static_cast<unsigned>(a.heads) * rest_packs;
  const float direction = a.back ? -1.0F : 1.0F;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float* cosine = a.cosine + row % a.sequence * half;
    const float* sine = a.sine + row % a.sequence * half;
    for (unsigned item = threadIdx.x; item < items; item += blockDim.x) {
      const std::int64_t i = std::int64_t{item % packs} * kPack<T>, left = half - i;
      const std::int64_t offset = (row * a.heads + item / packs) * a.head_size + i;
      const T* x = static_cast<const T*>(a.x) + offset;
      T* y = static_cast<T*>(a.y) + offset;
      const Pack<T> c = load_floats<T, kAligned>(cosine + i, left), s = load_floats<T, kAligned>(sine + i, left);
      Pack<T> first = load<kAligned>(x, left), second = load<kAligned>(x + half, left);
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k) {
        const float towards = s.at[k] * direction;
        const float rotated = first.at[k] * c.at[k] - second.at[k] * towards;
        second.at[k] = second.at[k] * c.at[k] + first.at[k] * towards;
        first.at[k] = rotated;
      }
      store<kAligned>(y, left, first);
      store<kAligned>(y + half, left, second);
    }
    for (unsigned item = threadIdx.x; item < rest_items; item += blockDim.x) {
      const std::int64_t i = std::int64_t{item % rest_packs} * kPack<T>;
      const std::int64_t offset = (row * a.heads + item / rest_packs) * a.head_size + a.rotated + i;
      const Pack<T> copied = load<kAligned>(static_cast<const T*>(a.x) + offset, rest - i);
      store<kAligned>(static_cast<T*>(a.y) + offset, rest - i, copied);
    }
  }
}

}  // namespace

void rotary_table(DType dtype, const RotaryAngles& call, void* stream) {
  with_element(dtype, [&](auto type) {
    launch("rotary_table", fill_table<decltype(type)>,
           {.blocks = divide_up(call.length * call.half, kThreads), .threads = kThreads}, stream, call);
  });
}

void rotate(DType dtype, const RotateRows& call, std::int64_t rows, void* stream) {
  with_element(dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t half = call.rotated / 2, rest = call.head_size - call.rotated;
    const std::int64_t items = call.heads * divide_up(std::max(half, rest), kPack<T>);
    if (items == 0) return;
    const std::int64_t threads = std::min<std::int64_t>(kThreads, divide_up(items, kWarp) * kWarp);
    const Grid grid = {.blocks = rows, .threads = static_cast<unsigned>(threads)};
    if (items > kMaxItems) refuse_launch("rotate", grid, "its rows are too long", "4 billion elements are possible");
    const bool aligned = rows_are_aligned<T>(half) && rows_are_aligned<T>(call.head_size) &&
                         are_aligned({call.x, call.y, call.cosine, call.sine});
    with_condition(aligned, [&](auto is_aligned) {
      launch("rotate", rotate_rows<T, decltype(is_aligned)::value>, grid, stream, call, rows);
    });
  });
}

}  // namespace rp::cuda
