// models/ops.h
// Differentiable operations of a transformer block over the loops of kernels.h: each is one node of the autograd graph
// and one pass over memory in each direction.
//
// Tensors are bf16 or fp32 on the CPU. Shapes: b sequences, t positions, n heads, d size of a head, h hidden size. The
// gradient of a weight is fp32 whatever the weight's dtype (the engine rounds it where the leaf wants that); results
// depend neither on the number of threads nor on addresses.
#pragma once

#include <ATen/core/Tensor.h>

namespace rp::models {

// weight_h * x / sqrt(mean(x^2) + epsilon) over the last dimension, normalised in fp32 and rounded to the dtype of `x`
// before the multiplication, as transformers' LlamaRMSNorm does.
[[nodiscard]] at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight_h, double epsilon);

// Cosine and sine of position * frequency, rounded to the activations' dtype but kept as fp32.
struct RotaryTable {
  at::Tensor cosine_td2;  // [t, d / 2]
  at::Tensor sine_td2;
};

// Applies the rotary position embedding; the halves of a head are the pairs' elements. Products and sum are fp32,
// rounded once.
[[nodiscard]] at::Tensor rotate_heads(const at::Tensor& x_btnd, const RotaryTable& table);

// silu(gate) * up, element by element.
[[nodiscard]] at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

// The rows of weight_vh named by ids_bt: [b, t, h]. The weight's gradient is a sparse fp32 tensor with one row per
// distinct id (its positions added in order), so that accumulating into a dense gradient touches those rows only; the row
// of `padding_id` gets none. Throws rp::Error (kUserError) for an id outside the vocabulary.
[[nodiscard]] at::Tensor embed(const at::Tensor& weight_vh, const at::Tensor& ids_bt, std::int64_t padding_id = -1);

}  // namespace rp::models
