// models/layers/lora.h
// Adds low-rank pairs to frozen weights, and computes their gradients: LoRA and DoRA as in PEFT.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "models/layers/linear.h"

namespace rp::models {

// Returns y, which is x times the weight plus the bias, with the pair of the weights applied: y +
// scale B A dropout(x), rounded once. With DoRA each output of the product is scaled so that its
// row of W + scale B A has the trained length. Differentiable. As for linear(), the values may be
// arbitrary if no code reads them; with DoRA y must not be. fp16 on the CPU is computed in fp32.
// REQUIRES: the weights have a pair.
[[nodiscard]] at::Tensor adapted(const at::Tensor& y, const at::Tensor& x, const LinearWeights& weights, bool is_read);

// Returns whether adapted_linears() supports these products: bf16 or fp32 on the CPU, frozen
// weights, at least one pair, neither DoRA nor dropout.
[[nodiscard]] bool takes_adapted_linears(const at::Tensor& x, const std::vector<LinearWeights>& weights);

// Returns x times each weight with its pair, as linear() and adapted() would, in one operation: the
// narrow products of x with all pairs are one product, and so are those of their gradients. The
// gradient of x is one sum, rounded after each product, the product of the last weight first.
// REQUIRES: takes_adapted_linears().
[[nodiscard]] std::vector<at::Tensor> adapted_linears(const at::Tensor& x, const std::vector<LinearWeights>& weights,
                                                      bool is_read);

// Returns y, which is x times the weights of its rows' experts, with the experts' pairs applied.
// The pairs have shapes a [e, r, i], b [e, o, r]. REQUIRES: the pair is defined and has no
// magnitude.
[[nodiscard]] at::Tensor adapted_experts(const at::Tensor& y, const at::Tensor& x_nh, const LoraPair& pair,
                                         const at::Tensor& counts_e);

// Returns the weight with its pair merged into it, [o, i] in fp32. If there are several experts,
// for one of them.
[[nodiscard]] at::Tensor merged_weight(const at::Tensor& weight_oi, const LoraPair& pair);

}  // namespace rp::models
