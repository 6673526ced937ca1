// pipeline/tensors.h
// LibTorch tensors and the store's descriptions of them.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "hoststore/boundary.h"
#include "roundpipe/layer.h"

namespace rp {

// Throws rp::Error (kUsage) for a dtype that cannot travel.
[[nodiscard]] DType dtype_of(at::ScalarType type);
[[nodiscard]] at::ScalarType scalar_type_of(DType dtype);

// A tensor over memory that somebody else owns. An absent one is undefined.
[[nodiscard]] at::Tensor tensor_over(const TensorView& view);
[[nodiscard]] Tensors tensors_over(const std::vector<TensorView>& views);

// A tensor of this shape over `data`.
[[nodiscard]] at::Tensor tensor_over(const std::byte* data, at::IntArrayRef shape, at::ScalarType type);

// The description of dense row-major tensors. `tensors` is made so (contiguous, on the CPU) and must outlive the views.
// Throws rp::Error (kUsage) for more tensors or dimensions than a boundary holds.
[[nodiscard]] std::vector<TensorView> views_of(Tensors& tensors);

}  // namespace rp
