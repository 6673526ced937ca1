// models/layers/linear.h
// Products with weights, y = x weight^T + bias, and the sums of their gradients.
//
// On a GPU the products of the backward pass add the weights' gradients directly to the leaves'
// fp32 gradients. Nothing else of a weight's size is written, read, rounded or added, which
// autograd would do with 20 bytes per parameter and microbatch (docs/design/kernels.md). On the
// CPU, LibTorch's operators compute the products, with LibTorch's bits. The gradient of bf16
// weights is widened and added to that of the leaf in one pass.
//
// LibTorch multiplies fp16 fast only on the few processors that compute in fp16, and elsewhere 5 to
// 20 times slower than fp32 (docs/design/models.md). So on the CPU the operands in fp16 are
// widened, the product is computed in fp32, and the result is rounded once. This is done on every
// processor, so that results do not depend on the processor's abilities.
//
// Shapes: i inputs, o outputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace rp::models {

// A LoRA pair (roundpipe/trained_parts.h) of rank r. Undefined if there is no pair.
struct LoraPair {
  at::Tensor a_ri{}, b_or{};
  at::Tensor magnitude_o{};  // for DoRA; otherwise undefined
  double scale = 1;
  double dropout = 0;  // of this call; 0 in evaluations
};

struct LinearWeights {
  at::Tensor weight_oi;
  at::Tensor bias_o{};  // may be undefined
  LoraPair lora{};
};

// Returns x [..., i] times one weight, with its pair (lora.h): [..., o]. Differentiable. Name
// LinearWeights in the call: with a tensor in braces it would be at::linear(). If `is_read` is
// false, because no code reads the values of the result (outputs_are_read()), they may be
// arbitrary, and only the graph is made.
[[nodiscard]] at::Tensor linear(const at::Tensor& x, const LinearWeights& weights, bool is_read = true);

// Returns the product with one weight and its pair in fp32, computed in fp32 whatever the dtypes of x
// and of the weights are.
[[nodiscard]] at::Tensor linear_in_fp32(const at::Tensor& x, const LinearWeights& weights);

// Returns the products of the same x with each of the weights. On a GPU the gradient of x is one
// sum, to which the products add, the last one first; it is rounded to the dtype of x after each
// product.
[[nodiscard]] std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<LinearWeights>& weights,
                                              bool is_read = true);

// Returns whether a backward pass may itself add to the gradient of `weight`, as autograd would add
// a complete gradient: `weight` is a leaf with a contiguous fp32 gradient.
[[nodiscard]] bool takes_gradient_in_place(const at::Tensor& weight);

// Returns x [..., i] as a matrix [n, i].
[[nodiscard]] at::Tensor rows_of(const at::Tensor& x);

// Returns x in the dtype in which its products are computed: fp32 for fp16 on the CPU, unchanged
// otherwise.
[[nodiscard]] at::Tensor widened(const at::Tensor& x);

// Computes total += a b, in fp32. On a GPU the product of 16-bit matrices is added by the product
// itself, unless products of fp16 are to be accumulated in fp16
// (at::globalContext().allowFP16AccumulationCuBLAS()), which has a result in fp16.
void add_product(at::Tensor total, const at::Tensor& a, const at::Tensor& b);

// Computes total += addend, in fp32. REQUIRES: the shapes are equal, and `total` is contiguous.
void add_to_floats(at::Tensor total, const at::Tensor& addend);

// Computes the gradient a b of `weight`, for autograd. Returns an undefined tensor if it was added
// in place, otherwise the gradient in the dtype of a.
[[nodiscard]] at::Tensor weight_gradient(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b);

}  // namespace rp::models
