// kernels/cuda/launch.cuh
// The host's side of a kernel: the choice of a template's instance, and the launch with its check.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "common/check.h"
#include "kernels/cuda/device.cuh"
#include "kernels/gpu_kernels.h"
#include "roundpipe/error.h"

namespace rp::cuda {

// Blocks of threads. A kernel goes over its rows (or parts of an array) in strides of gridDim.x, so that any number of
// them fits; blocks.y is at most 65535.
struct Grid {
  std::int64_t blocks = 0;
  unsigned threads = 0;
  std::int64_t blocks_y = 1;
};

constexpr std::int64_t kMaxBlocks = std::int64_t{1} << 30;  // of 2^31 - 1 that a grid may have
constexpr std::int64_t kMaxBlocksY = 65535;

[[noreturn]] inline void refuse_launch(const char* name, const Grid& grid, const char* why, const char* remedy) {
  throw Error(ExitCode::kNoResource, std::string("the GPU kernel ") + name + " (" + std::to_string(grid.blocks) +
                                         " x " + std::to_string(grid.blocks_y) + " blocks of " +
                                         std::to_string(grid.threads) + " threads) could not be started: " + why +
                                         "; " + remedy);
}

inline void check_columns(const char* name, const Grid& grid) {
  if (grid.blocks_y > kMaxBlocksY)
    refuse_launch(name, grid, "its rows are too long", "67 million elements are possible");
}

#ifdef __CUDACC__
inline const char* remedy_for(cudaError_t error) {
  switch (error) {
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
      return "it was not built for this generation of GPUs: build with -DRP_CUDA_ARCHITECTURES for it";
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorInsufficientDriver:
      return "the driver is older than the CUDA toolkit of the build: update the driver";
    default:
      return "CUDA may tell here of an earlier call: with CUDA_LAUNCH_BLOCKING=1 the error comes where it belongs";
  }
}

// Enqueues the kernel; no blocks, no launch. Throws rp::Error (kNoResource) if CUDA refuses.
template <typename... Parameters, typename... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), Grid grid, void* stream, const Arguments&... arguments) {
  if (grid.blocks <= 0 || grid.blocks_y <= 0) return;
  check_columns(name, grid);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(std::min(grid.blocks, kMaxBlocks)), static_cast<unsigned>(grid.blocks_y));
  config.blockDim = dim3(grid.threads);
  config.stream = static_cast<cudaStream_t>(stream);
  const cudaError_t result = cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
  if (result == cudaSuccess) return;
  (void)cudaGetLastError();  // or a later call would report it again
  refuse_launch(name, grid, cudaGetErrorString(result), remedy_for(result));
}
#else
template <typename... Parameters, typename... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), Grid grid, void*, const Arguments&... arguments) {
  check_columns(name, grid);
  launch_emulated(name, kernel, grid, arguments...);
}
#endif

// Calls run(T{}) for the element type T of a call, whose dtype is one of the three that kernels take.
template <typename Run>
void with_element(DType dtype, const Run& run) {
  switch (dtype) {
    case DType::kBFloat16: return run(Bf16{});
    case DType::kFloat16: return run(Fp16{});
    default: break;
  }
  // RP_ASSERT by hand: nvcc would put this tree's place into the program for __FILE__.
  if (dtype != DType::kFloat32) fail_assertion("dtype == DType::kFloat32", "kernels/cuda/launch.cuh", __LINE__);
  run(float{});
}

template <bool kValue>
struct Constant {
  static constexpr bool value = kValue;
};

// Calls run(Constant<condition>).
template <typename Run>
void with_condition(bool condition, const Run& run) {
  condition ? run(Constant<true>()) : run(Constant<false>());
}

// Whether all addresses (null counts) are multiples of 16 bytes.
inline bool are_aligned(std::initializer_list<const void*> addresses) {
  return std::all_of(addresses.begin(), addresses.end(),
                     [](const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; });
}

// Whether rows of this many elements of type T behind an aligned address are all aligned.
template <typename T>
constexpr bool rows_are_aligned(std::int64_t columns) {
  return columns % kPack<T> == 0;
}

}  // namespace rp::cuda
