// models/layers/embedding.h
// The embedding of tokens, differentiable.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace rp::models {

// The rows of weight_vh named by ids_bt: [b, t, h]. The gradients of an id's places are added in order of place, in
// fp32; the row of `padding_id` gets none. Only the rows that occur are touched:
// - on the CPU the weight's gradient is a sparse fp32 tensor with one row per distinct id, which autograd adds to a
// dense
//   gradient row by row;
// - on a GPU, where the number of distinct ids is not known without waiting for it, backward adds the rows to the
// weight's
//   `grad` itself, if the weight is a leaf that has a contiguous fp32 one (as the runtime's leaves do), and gives
//   autograd nothing; else the gradient is a dense fp32 tensor.
//
// An id outside the vocabulary: on the CPU throws rp::Error (kUserError); on a GPU its row is NaN, and so is any loss
// that comes of it, and it gets no gradient.
[[nodiscard]] at::Tensor embed(const at::Tensor& weight_vh, const at::Tensor& ids_bt, std::int64_t padding_id = -1);

}  // namespace rp::models
