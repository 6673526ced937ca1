// models/experts.h
// A mixture of experts: each token goes through a few of many MLPs, and their outputs are added up by the router's weights.
//
// Tokens are sorted by expert, so that the products of all experts are grouped ones (grouped_linear.h), and nothing waits for a
// GPU to say how many tokens an expert has. What the router chose is kept for the recompute (roundpipe/recompute.h).
//
// Shapes: n tokens, h hidden size, e experts, k experts of a token, i intermediate size.
#pragma once

#include <ATen/core/Tensor.h>

#include "model_files/model_config.h"
#include "models/linear.h"

namespace rp::models {

struct ExpertWeights {
  LinearWeights router{};                              // [e, h]
  at::Tensor gate_eih{}, up_eih{}, down_ehi{};
  LoraPair gate_pair{}, up_pair{}, down_pair{};  // where the experts have them
};

// x [..., h] -> [..., h]. Differentiable; the choice of experts is not. A token's outputs are multiplied by its weights, which have
// the dtype of x, rounded, and added up in fp32. Deterministic.
[[nodiscard]] at::Tensor mixture_of_experts(const at::Tensor& x, const ExpertWeights& weights, const ExpertsConfig& config,
                                            Activation activation);

}  // namespace rp::models
