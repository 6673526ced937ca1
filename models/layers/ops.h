// models/layers/ops.h
// Differentiable operations of a decoder layer, computed by the loops of layer_kernels.h or, on a
// GPU, by gpu_kernels.h. Each is one node of the autograd graph and one pass over memory in each
// direction.
//
// Tensors are bf16, fp16 or fp32; all tensors of a call are on the same device. Shapes: b
// sequences, t positions, n heads, d size of a head, h hidden size. The gradient of a weight is
// fp32 whatever the weight's dtype (the autograd engine rounds it if the leaf requires that).
// Results depend neither on the number of threads nor on addresses. On a GPU nothing waits: calls
// enqueue work on LibTorch's current stream.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/formulas.h"

namespace rp::models {

// Returns weight_h * x / sqrt(mean(x^2) + epsilon) over the last dimension. x is normalised in fp32
// and rounded to its dtype before the multiplication, as in transformers' LlamaRMSNorm, or as
// another `kind` specifies.
[[nodiscard]] at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight_h, double epsilon,
                                  NormKind kind = NormKind::kRounded);

// A sum, and rms_norm() of the sum.
struct NormalisedSum {
  at::Tensor sum;
  at::Tensor y;
};

// Returns x + residual, which have the same shape, and the norm of the sum. The results have the
// bits of an addition followed by rms_norm(); on the CPU the gradients have, too. On a GPU the
// gradient of the sum is rounded once, whereas two operations round it twice.
[[nodiscard]] NormalisedSum add_rms_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight_h,
                                         double epsilon, NormKind kind = NormKind::kRounded);

// Cosine and sine of position * frequency, rounded to the activations' dtype but stored as fp32.
struct RotaryTable {
  // [t, r / 2], or [b t, r / 2] if positions differ between the sequences. r: the number of elements
  // of a head that are rotated.
  at::Tensor cosine_tr2;
  at::Tensor sine_tr2;
};

// Applies the rotary position embedding to the first r elements of each head; the others are
// unchanged. Element i of the first half of the rotated part and element i of its second half form
// a pair. Products and sum are fp32, rounded once.
[[nodiscard]] at::Tensor rotate_heads(const at::Tensor& x_btnd, const RotaryTable& table);

// Returns act(gate) * up, element by element, computed in fp32 and rounded once.
[[nodiscard]] at::Tensor glu(const at::Tensor& gate, const at::Tensor& up, Activation activation = Activation::kSilu);

}  // namespace rp::models
