// tests/kernels/cuda/emulation.h
// Runs the kernels of kernels/cuda on the CPU, as plain C++. Included before each of their sources
// (-include).
//
// Blocks run one after the other. The threads of a block are fibers of the calling thread, which
// switch only at __syncthreads(), shuffles and products of fragments; a warp runs ahead of the
// others until a barrier stops it. The emulation is stricter than a GPU: a barrier that not all
// threads of a block (or lanes of a warp) reach ends the process. exp, log, sin and cos have errors
// as large as CUDA's may be. The emulation does not detect races within a warp, or limits of
// registers and memory. Not thread-safe.
#pragma once

#define RP_CUDA_EMULATION 1
#define __host__
#define __device__
#define __global__
#define __shared__ static
#define __launch_bounds__(...)

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

// Passes `bits` to the other lanes of the warp and returns the bits of lane (own ^ step).
std::uint64_t exchange(std::uint64_t bits, unsigned step);

// The instructions of the PTX ISA that matrix.cuh uses. A copy (of zeros, if `from` is null) is
// made when its thread waits for it, not earlier.
void begin_copy(void* to, const void* from);
void end_copy_group();
void wait_for_copies(std::size_t num_left);
void load_matrices(std::uint32_t (&to)[4], const void* row, bool is_transposed);
// Computes the product of 16-bit elements in fp64, adds it to c and rounds once.
void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t* b, float (*widen)(std::uint16_t));

// Returns `exact` in fp32, moved by up to `most` neighbouring values. The distance depends on
// `argument` only. Results that functions return exactly are not moved: 0, 1, infinities, NaN.
inline float inexact(double exact, float argument, int most) {
  auto value = static_cast<float>(exact);
  if (!std::isfinite(value) || exact == 0 || exact == 1) return value;
  const std::uint32_t mixed = std::bit_cast<std::uint32_t>(argument) * 2654435761U >> 16;
  const int steps = static_cast<int>(mixed % static_cast<unsigned>(2 * most + 1)) - most;
  for (int i = 0; i != steps; i += steps > 0 ? 1 : -1) value = std::nextafter(value, steps > 0 ? INFINITY : -INFINITY);
  return value;
}

// The largest errors according to CUDA's documentation, in units of the last place.
inline float device_expf(float x) { return inexact(std::exp(static_cast<double>(x)), x, 2); }
inline float device_logf(float x) { return inexact(std::log(static_cast<double>(x)), x, 1); }
inline float device_cosf(float x) { return inexact(std::cos(static_cast<double>(x)), x, 2); }
inline float device_sinf(float x) { return inexact(std::sin(static_cast<double>(x)), x, 2); }

}  // namespace rp::emulation

#define expf ::rp::emulation::device_expf
#define logf ::rp::emulation::device_logf
#define cosf ::rp::emulation::device_cosf
#define sinf ::rp::emulation::device_sinf
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
struct alignas(8) float2 {
  float x, y;
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

// Replaces the launch() of launch.cuh.
template <typename GridType, typename... Parameters, typename... Arguments>
void launch_emulated(const char* name, void (*kernel)(Parameters...), const GridType& grid,
                     const Arguments&... arguments) {
  if (grid.blocks <= 0 || grid.blocks_y <= 0) return;
  if (grid.threads == 0 || grid.threads > 1024 || grid.threads % 32 != 0)
    emulation::fail(std::string(name) + ": threads");
  // At most so many blocks that a kernel has to process its rows in strides.
  emulation::grid_size = {static_cast<unsigned>(std::min<std::int64_t>(grid.blocks, 7)),
                          static_cast<unsigned>(grid.blocks_y)};
  emulation::block_size = {grid.threads, 1};
  for (unsigned y = 0; y < emulation::grid_size.y; ++y) {
    for (unsigned x = 0; x < emulation::grid_size.x; ++x) {
      emulation::block_index = {x, y};
      emulation::run_block(grid.threads, [&] { kernel(Parameters(arguments)...); });
    }
  }
}

}  // namespace rp::cuda
