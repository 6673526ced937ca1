// models/layers/experts.h
// A mixture of experts: each token goes through a few of many MLPs, and their outputs are added up by the router's
// weights.
//
// Tokens are sorted by expert, so that the products of all experts are grouped ones (grouped_linear.h), and nothing
// waits for a GPU to say how many tokens an expert has. What the router chose is kept for the recompute
// (roundpipe/recompute.h).
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
  LinearWeights gate{}, up{},
      down{};  // of all experts: weights [e, i, h], [e, i, h], [e, h, i], biases [e, i], [e, i], [e, h]
};

struct MixtureOutput {
  at::Tensor y;           // with the shape of x
  ExpertBalance balance;  // of this router
};

// x [..., h] -> [..., h]. Differentiable; the choice of experts is not. A token's outputs are multiplied by its
// weights, which have the dtype of x, rounded, and added up in fp32. Deterministic.
[[nodiscard]] MixtureOutput mixture_of_experts(const at::Tensor& x, const ExpertWeights& weights,
                                               const ExpertsConfig& config, Activation activation);

}  // namespace rp::models
