// models/layers/lora.h
// Pairs of low rank beside frozen weights, and their gradients: LoRA and DoRA as PEFT computes them.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "models/layers/linear.h"

namespace rp::models {

// y, which is x times the weight and its bias, with what the weights' pair adds: y + scale B A dropout(x), rounded
// once; with DoRA the product of each output is scaled so that its row of W + scale B A has the trained length.
// Differentiable. As linear(), where nothing reads the values, they may be any. fp16 on the CPU is computed in fp32.
// REQUIRES: the weights have a pair.
[[nodiscard]] at::Tensor adapted(const at::Tensor& y, const at::Tensor& x, const LinearWeights& weights, bool is_read);

// Whether adapted_linears() has a way for these products: bf16 or fp32 on the CPU, frozen weights, at least one pair,
// neither DoRA nor dropout.
[[nodiscard]] bool takes_adapted_linears(const at::Tensor& x, const std::vector<LinearWeights>& weights);

// x times each weight with its pair, as linear() and adapted() give it, in one operation: the narrow products of all
// pairs with x, and those of their gradients, are one, and the gradient of x is one sum, rounded after each product,
// the last weight's first. REQUIRES: takes_adapted_linears().
[[nodiscard]] std::vector<at::Tensor> adapted_linears(const at::Tensor& x, const std::vector<LinearWeights>& weights,
                                                      bool is_read);

// The pairs of experts: a [e, r, i], b [e, o, r].
// y, which is x times the weights of its rows' experts, with what their pairs add. REQUIRES: the pair is defined,
// without magnitude.
[[nodiscard]] at::Tensor adapted_experts(const at::Tensor& y, const at::Tensor& x_nh, const LoraPair& pair,
                                         const at::Tensor& counts_e);

// The weight with its pair in one, [o, i] in fp32; of one expert, where there are several.
[[nodiscard]] at::Tensor merged_weight(const at::Tensor& weight_oi, const LoraPair& pair);

}  // namespace rp::models
