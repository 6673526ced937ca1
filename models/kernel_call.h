// models/kernel_call.h
// From tensors to kernels.h: the element format of a tensor, and the sharing of a call among LibTorch's threads.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "models/kernels.h"

namespace rp::models {

inline Element element_of(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_cpu() && (tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kFloat),
              "needs a bf16 or fp32 tensor on the CPU, not ", tensor.toString());
  return tensor.scalar_type() == at::kBFloat16 ? Element::kBf16 : Element::kFp32;
}

// Elements below which a second thread costs more than it saves.
constexpr std::int64_t kElementsPerThread = 32768;

// Calls run(begin, end) on parts of [0, rows), on several threads where there is enough to do.
template <typename Run>
void share_rows(std::int64_t rows, std::int64_t columns, const Run& run) {
  at::parallel_for(0, rows, std::max<std::int64_t>(1, kElementsPerThread / std::max<std::int64_t>(1, columns)), run);
}

template <typename Run>
void share_elements(std::int64_t elements, const Run& run) {
  at::parallel_for(0, elements, kElementsPerThread, run);
}

}  // namespace rp::models
