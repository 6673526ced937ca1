// kernels/cuda/launch.cuh
// The host's side of a kernel: selects the instance of a template, launches it and checks the
// launch.
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

// The number of blocks and threads of a launch. A kernel processes its rows (or parts of an array)
// in strides of gridDim.x, so any number of them fits; blocks_y is at most 65535.
struct Grid {
  std::int64_t blocks = 0;
  unsigned threads = 0;
  std::int64_t blocks_y = 1;
};

constexpr std::int64_t kMaxBlocks = std::int64_t{1} << 30;  // a grid may have 2^31 - 1
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
      return "CUDA may report an error of an earlier call here: with CUDA_LAUNCH_BLOCKING=1 the error comes at its "
             "call";
  }
}

// Enqueues the kernel, unless there are no blocks. Throws rp::Error (kNoResource) if CUDA refuses.
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
  (void)cudaGetLastError();  // otherwise a later call would report it again
  refuse_launch(name, grid, cudaGetErrorString(result), remedy_for(result));
}
#else
template <typename... Parameters, typename... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), Grid grid, void*, const Arguments&... arguments) {
  check_columns(name, grid);
  launch_emulated(name, kernel, grid, arguments...);
}
#endif

// Calls run(T{}) for the element type T of a call, whose dtype is one of the three that kernels
// accept.
template <typename Run>
void with_element(DType dtype, const Run& run) {
  switch (dtype) {
    case DType::kBFloat16: return run(Bf16{});
    case DType::kFloat16: return run(Fp16{});
    default: break;
  }
  // Written out instead of RP_ASSERT, because nvcc would put the path of this source tree into the
  // program for __FILE__.
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

// Returns true if all addresses are multiples of 16 bytes. Null addresses are.
inline bool are_aligned(std::initializer_list<const void*> addresses) {
  return std::all_of(addresses.begin(), addresses.end(),
                     [](const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; });
}

// Returns true if rows of this many elements of type T are all aligned when the first one is.
template <typename T>
constexpr bool rows_are_aligned(std::int64_t columns) {
  return columns % kPack<T> == 0;
}

}  // namespace rp::cuda
