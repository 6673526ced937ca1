// models/layers/linear.h
// Products with weights: y = x weight^T + bias, and the sum of their gradients.
//
// On a GPU the backward adds the weights' gradients to the leaves' fp32 gradients in the products themselves: of a
// weight's size nothing else is written, read, rounded or added, which with autograd's way is 20 bytes a parameter and
// microbatch (docs/design/kernels.md). On the CPU they are LibTorch's operators, with their bits; of bf16 weights the
// gradient is widened and added to the leaf's in one pass.
//
// But LibTorch multiplies fp16 fast only on the few processors that compute in it, and elsewhere 5 to 20 times slower
// than fp32 (docs/design/models.md). So fp16 on the CPU means: operands are widened, the product is one of fp32, and
// the result is rounded once. That holds for every processor, so that results do not depend on what it can.
//
// Shapes: i inputs, o outputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace rp::models {

// A pair of LoRA (roundpipe/trained_parts.h); undefined: there is none. r rank.
struct LoraPair {
  at::Tensor a_ri{}, b_or{};
  at::Tensor magnitude_o{};  // of DoRA, else undefined
  double scale = 1;
  double dropout = 0;  // of this call: 0 in evaluations
};

struct LinearWeights {
  at::Tensor weight_oi;
  at::Tensor bias_o{};  // or undefined
  LoraPair lora{};
};

// x [..., i] times one weight, with its pair (lora.h): [..., o]. Differentiable. Name LinearWeights in the call: with a
// tensor in braces it would be at::linear(). Where nothing reads the result's values (outputs_are_read()), it may have
// any, and only its graph is made.
[[nodiscard]] at::Tensor linear(const at::Tensor& x, const LinearWeights& weights, bool is_read = true);

// The same x times each of them. On a GPU its gradient is one sum, which the products add up: rounded to the dtype of x
// after each, the last one first.
[[nodiscard]] std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<LinearWeights>& weights,
                                              bool is_read = true);

// Whether a backward may add to the gradient of `weight` itself, as autograd would add a whole one: it is a leaf with
// an fp32 gradient of its own.
[[nodiscard]] bool takes_gradient_in_place(const at::Tensor& weight);

// In the dtype in which its products are computed: fp16 on the CPU in fp32, anything else as it is.
[[nodiscard]] at::Tensor widened(const at::Tensor& x);

// total += a b, in fp32. On a GPU the product of 16-bit matrices is added by the product itself, unless products of
// fp16 are to be added up in fp16 (at::globalContext().allowFP16AccumulationCuBLAS()), which gives fp16.
void add_product(at::Tensor total, const at::Tensor& a, const at::Tensor& b);

// total += addend, in fp32; shapes are equal, and the total is contiguous.
void add_to_floats(at::Tensor total, const at::Tensor& addend);

// The gradient a b of a weight, for autograd: undefined where it is added in place, else in the dtype of a.
[[nodiscard]] at::Tensor weight_gradient(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b);

}  // namespace rp::models
