// models/layers/expert_balance.h
// Measures how evenly the routers of a model distribute a microbatch's tokens over their experts:
// sums over its layers, which pass from layer to layer next to the hidden states, and the numbers
// that the loss computes from them. All routers have the same number of experts.
//
// The auxiliary loss is that of the Switch Transformer (arXiv 2101.03961) as transformers computes
// it: e times the sum, over experts, of the share of rows that chose the expert times the mean
// probability that routers gave it. Both are computed over the rows of all layers together. The
// gradient passes through the probabilities only.
//
// Shapes: n tokens, e experts.
#pragma once

#include <ATen/core/Tensor.h>

#include "roundpipe/layer.h"

namespace rp::models {

struct ExpertBalance {
  // fp32: the probability of each expert, summed over rows. Undefined: no router so far.
  at::Tensor probabilities_e{};
  // int64 [e + 3]: the number of rows that chose each expert; the number of rows; and the numbers
  // of rows of the expert that was chosen most and of the one that was chosen least, summed over
  // layers.
  at::Tensor counts{};

  [[nodiscard]] bool is_defined() const { return probabilities_e.defined(); }
};

// Returns the balance of one router: `probabilities_ne` is the softmax over all of its experts,
// fp32, and `chosen_e` the number of rows that chose each expert, int64.
[[nodiscard]] ExpertBalance balance_of(const at::Tensor& probabilities_ne, const at::Tensor& chosen_e);

// Adds the balance of one layer to that of the layers below. Either may be undefined.
[[nodiscard]] ExpertBalance sum_of(const ExpertBalance& below, const ExpertBalance& own);

// The balance of a microbatch as fp32 scalars.
struct BalanceReport {
  // Differentiable. If all experts have the same load and probability, it is the number of experts
  // that a row chooses.
  at::Tensor auxiliary_loss;
  // The highest load of an expert, as a multiple of the mean load; averaged over layers. 1 is even.
  at::Tensor most_loaded;
  // The lowest load of an expert, as a multiple of the mean load; averaged over layers. 0: in each
  // layer there is an expert that no token chose.
  at::Tensor least_loaded;
};
// REQUIRES: `balance` is defined.
[[nodiscard]] BalanceReport report_of(const ExpertBalance& balance);

}  // namespace rp::models
