// models/layers/kernel_call.h
// Helpers for calling the kernels of layer_kernels.h and gpu_kernels.h with tensors: where a call
// runs, the dtype of a tensor, tensors that may be undefined as arguments of autograd nodes, and, on
// the CPU, how a call is divided among LibTorch's threads.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <optional>

#include "kernels/cpu/layer_kernels.h"
#include "kernels/gpu_kernels.h"
#include "models/layers/scalar_type.h"

namespace rp::models {

// Returns whether calls with this tensor are executed by gpu_kernels().
inline bool runs_on_gpu(const at::Tensor& tensor) { return tensor.is_cuda() || gpu_kernels_take_cpu_memory(); }

// Returns the dtype of a tensor for kernels. Throws c10::Error if no kernel supports it.
inline DType kernel_dtype(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  TORCH_CHECK(is_working_dtype(type), "needs a bf16, fp16 or fp32 tensor, not ", tensor.toString(), " on ",
              tensor.device());
  return dtype_of(type);
}

// Returns a tensor as an optional argument of torch::autograd::Function::apply(): nothing if it is
// undefined.
inline std::optional<at::Tensor> where_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::make_optional(tensor) : std::nullopt;
}

// The number of elements below which a second thread costs more than it saves.
constexpr std::int64_t kElementsPerThread = 32768;

// Calls run(begin, end) for parts of [0, rows), in several threads if there is enough work.
template <typename Run>
void share_rows(std::int64_t rows, std::int64_t columns, const Run& run) {
  at::parallel_for(0, rows, std::max<std::int64_t>(1, kElementsPerThread / std::max<std::int64_t>(1, columns)), run);
}

template <typename Run>
void share_elements(std::int64_t elements, const Run& run) {
  at::parallel_for(0, elements, kElementsPerThread, run);
}

}  // namespace rp::models
