// tests/cuda/kernels/emulation.h
// Runs the kernels of cuda/kernels on the CPU, as plain C++: included before each of their sources (-include).
//
// Blocks run one after the other; the threads of a block are fibers of the calling thread, which change only at
// __syncthreads() and shuffles, and a warp runs as far ahead of the others as barriers let it. Stricter than a GPU: a barrier
// that not all threads of a block (lanes of a warp) reach ends the process. What it cannot see: races within a warp, limits of registers and memory, the GPU's own rounding of
// exp, log, sin and cos. Not thread-safe.
#pragma once

#define RP_CUDA_EMULATION 1
#define __host__
#define __device__
#define __global__
#define __shared__ static
#define __launch_bounds__(threads)

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>

namespace rp::emulation {

struct Index {
  unsigned x = 0, y = 0;
};
inline Index grid_size, block_size, block_index, thread_index;

// Runs `body` once per thread of a block of `threads`.
void run_block(unsigned threads, const std::function<void()>& body);

// Ends the process.
[[noreturn]] void fail(const std::string& why);

void wait_for_block();

// Gives `bits` to the other lanes of the warp; the result is that of lane (own ^ step).
std::uint64_t exchange(std::uint64_t bits, unsigned step);

}  // namespace rp::emulation

#define gridDim ::rp::emulation::grid_size
#define blockDim ::rp::emulation::block_size
#define blockIdx ::rp::emulation::block_index
#define threadIdx ::rp::emulation::thread_index

struct alignas(16) uint4 {
  std::uint32_t x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

inline void __syncthreads() { rp::emulation::wait_for_block(); }

template <typename Value>
Value __shfl_xor_sync(std::uint32_t lanes, Value value, int step) {
  if (lanes != 0xffffffffU) rp::emulation::fail("a shuffle among some lanes only");
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(Value));
  bits = rp::emulation::exchange(bits, static_cast<unsigned>(step));
  std::memcpy(&value, &bits, sizeof(Value));
  return value;
}

inline float __uint_as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline std::uint32_t __float_as_uint(float value) { return std::bit_cast<std::uint32_t>(value); }

using EmulatedHalf = _Float16;
inline EmulatedHalf __ushort_as_half(std::uint16_t bits) { return std::bit_cast<EmulatedHalf>(bits); }
inline std::uint16_t __half_as_ushort(EmulatedHalf value) { return std::bit_cast<std::uint16_t>(value); }
inline float __half2float(EmulatedHalf value) { return static_cast<float>(value); }
inline EmulatedHalf __float2half_rn(float value) { return static_cast<EmulatedHalf>(value); }

struct EmulatedBfloat {
  std::uint16_t bits;
};
inline std::uint16_t __bfloat16_as_ushort(EmulatedBfloat value) { return value.bits; }
inline EmulatedBfloat __float2bfloat16_rn(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) return {0x7fff};
  return {static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}

namespace rp::cuda {

// In place of that of launch.cuh.
template <typename GridType, typename... Parameters, typename... Arguments>
void launch_emulated(const char* name, void (*kernel)(Parameters...), const GridType& grid, const Arguments&... arguments) {
  if (grid.blocks <= 0 || grid.blocks_y <= 0) return;
  if (grid.threads == 0 || grid.threads > 1024 || grid.threads % 32 != 0) emulation::fail(std::string(name) + ": threads");
  // As many blocks at most as make a kernel go over its rows in strides.
  emulation::grid_size = {static_cast<unsigned>(std::min<std::int64_t>(grid.blocks, 7)), static_cast<unsigned>(grid.blocks_y)};
  emulation::block_size = {grid.threads, 1};
  for (unsigned y = 0; y < emulation::grid_size.y; ++y) {
    for (unsigned x = 0; x < emulation::grid_size.x; ++x) {
      emulation::block_index = {x, y};
      emulation::run_block(grid.threads, [&] { kernel(Parameters(arguments)...); });
    }
  }
}

}  // namespace rp::cuda
