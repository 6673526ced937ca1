// models/layers/ops.h
// Differentiable operations of a decoder layer over the loops of kernels.h, or on a GPU over gpu_kernels.h: each is one
// node of the autograd graph and one pass over memory in each direction.
//
// Tensors are bf16, fp16 or fp32; all of a call are in one place. Shapes: b sequences, t positions, n heads,
// d size of a head, h hidden size. The gradient of a weight is fp32 whatever the weight's dtype (the engine rounds it
// where the leaf wants that); results depend neither on the number of threads nor on addresses. On a GPU nothing waits
// for it: calls enqueue work on LibTorch's current stream.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/formulas.h"

namespace rp::models {

// weight_h * x / sqrt(mean(x^2) + epsilon) over the last dimension, normalised in fp32 and rounded to the dtype of `x`
// before the multiplication, as transformers' LlamaRMSNorm does; or as another kind says.
[[nodiscard]] at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight_h, double epsilon,
                                  NormKind kind = NormKind::kRounded);

// A sum, and its rms_norm().
struct NormalisedSum {
  at::Tensor sum;
  at::Tensor y;
};

// x + residual and its norm, of equal shape: bit for bit the addition followed by rms_norm(), on the CPU in the
// gradients, too. On a GPU the gradient of the sum is rounded once, where two operations round it twice.
[[nodiscard]] NormalisedSum add_rms_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight_h,
                                         double epsilon, NormKind kind = NormKind::kRounded);

// Cosine and sine of position * frequency, rounded to the activations' dtype but kept as fp32.
struct RotaryTable {
  at::Tensor cosine_td2;  // [t, d / 2], or [b t, d / 2] where positions differ between the sequences
  at::Tensor sine_td2;
};

// Applies the rotary position embedding; the halves of a head are the pairs' elements. Products and sum are fp32,
// rounded once.
[[nodiscard]] at::Tensor rotate_heads(const at::Tensor& x_btnd, const RotaryTable& table);

// act(gate) * up, element by element, computed in fp32 and rounded once.
[[nodiscard]] at::Tensor glu(const at::Tensor& gate, const at::Tensor& up, Activation activation = Activation::kSilu);

}  // namespace rp::models
