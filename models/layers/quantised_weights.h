// models/layers/quantised_weights.h
// Expands frozen weights that the store has with 4 or 8 bits each, and quantises weights. On the CPU
// the kernels of kernels/cpu/quantised do it, on a GPU those of gpu_kernels.h, with the same bits.
//
// `bytes`: uint8, one dimension, with the layout of kernels/quantised_weights.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/quantised_weights.h"

namespace rp::models {

// Returns the weights, of this dtype and these sizes, which have as many elements as `shape`. On a GPU it enqueues the
// work on LibTorch's current stream.
[[nodiscard]] at::Tensor expanded(const at::Tensor& bytes, const QuantisedShape& shape, at::IntArrayRef sizes,
                                  at::ScalarType dtype);

// Returns one matrix of the weights, [rows, columns]. On the CPU only.
[[nodiscard]] at::Tensor expanded_matrix(const at::Tensor& bytes, const QuantisedShape& shape, std::int64_t matrix,
                                         at::ScalarType dtype);

// Quantises one matrix of the weights, `values` [rows, columns], contiguous and on the CPU. Returns
// false if a value is not finite; then the matrix has undefined contents.
[[nodiscard]] bool quantise(const at::Tensor& values, const QuantisedShape& shape, std::int64_t matrix,
                            const at::Tensor& bytes);

}  // namespace rp::models
