// models/layers/experts.h
// A mixture of experts: each token passes through a few of many MLPs, and their outputs are added,
// weighted by the router's weights.
//
// Tokens are sorted by expert. So the products of all experts are grouped products
// (grouped_linear.h), and no thread waits for a GPU to report how many tokens an expert has. The
// router's choice is kept for the recompute (roundpipe/recompute.h).
//
// Shapes: n tokens, h hidden size, e experts, k experts of a token, i intermediate size.
#pragma once

#include <ATen/core/Tensor.h>

#include "model_files/config/model_config.h"
#include "models/layers/expert_balance.h"
#include "models/layers/linear.h"

namespace rp::models {

struct ExpertWeights {
  LinearWeights router{};  // [e, h]
  // Of Router::kSigmoid, fp32; its gradient is the number of tokens of each expert.
  at::Tensor correction_e{};
  at::Tensor router_scale_h{}, expert_scale_e{};  // of Router::kScaledInput
  // All experts' weights: [e, i, h], [e, i, h], [e, h, i]; their biases: [e, i], [e, i], [e, h].
  LinearWeights gate{}, up{}, down{};
};

struct MixtureOutput {
  at::Tensor y;           // has the shape of x
  ExpertBalance balance;  // of this router
};

// Computes x [..., h] -> [..., h], for experts that are chosen by `router_x`, which is usually x.
// Differentiable, except the choice of experts. A backward pass adds to the gradient of correction_e, if it
// requires one, how many tokens chose each expert. A token's outputs are multiplied by its weights, which
// have the dtype of x, then rounded, and added in fp32. With Router::kSigmoid and kScaledInput the
// weights are fp32, and only the sum is rounded. `epsilon` is that of the router's norm, of
// kScaledInput. Deterministic.
[[nodiscard]] MixtureOutput mixture_of_experts(const at::Tensor& x, const at::Tensor& router_x,
                                               const ExpertWeights& weights, const ExpertsConfig& config,
                                               Activation activation, double epsilon);

}  // namespace rp::models
