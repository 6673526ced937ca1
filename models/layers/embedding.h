// models/layers/embedding.h
// The differentiable embedding of tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace rp::models {

// Returns the rows of weight_vh that ids_bt selects: [b, t, h]. The gradients of the positions of
// an id are added in order of position, in fp32; the row of `padding_id` gets no gradient. Only the
// rows that occur are touched:
// - On the CPU the weight's gradient is a sparse fp32 tensor with one row per distinct id. Autograd
//   adds it to a dense gradient row by row.
// - On a GPU the number of distinct ids is not known without waiting. If the weight is a leaf with
//   a contiguous fp32 `grad`, as the runtime's leaves are, the backward pass adds the rows to it
//   and returns no gradient to autograd. Otherwise the gradient is a dense fp32 tensor.
//
// An id outside the vocabulary throws rp::Error (kUserError) on the CPU. On a GPU its row is NaN,
// and so is any loss that is computed from it; the id gets no gradient.
[[nodiscard]] at::Tensor embed(const at::Tensor& weight_vh, const at::Tensor& ids_bt, std::int64_t padding_id = -1);

// Returns a factor of embeddings as transformers multiplies by it: rounded to the dtype of activations.
[[nodiscard]] double rounded_scale(double scale, at::ScalarType dtype);

}  // namespace rp::models
