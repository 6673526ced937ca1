// models/layers/expert_balance.h
// How evenly the routers of a model spread a microbatch's tokens over their experts: sums over its layers, which travel
// from layer to layer next to the hidden states, and what the loss makes of them. Every router has the same number of
// experts.
//
// The auxiliary loss is that of the Switch Transformer (arXiv 2101.03961) as transformers has it: e * sum over experts
// of the share of rows that chose the expert times the mean probability that routers gave it, both over the rows of all
// layers together. Its gradient goes through the probabilities only.
//
// Shapes: n tokens, e experts.
#pragma once

#include <ATen/core/Tensor.h>

#include "roundpipe/layer.h"

namespace rp::models {

struct ExpertBalance {
  at::Tensor probabilities_e{};  // fp32: each expert's probability, added up over rows; undefined: no router has been
                                 // passed yet
  at::Tensor counts{};  // int64 [e + 3]: rows that chose each expert; rows; added up over layers, the rows of the most
                        // and of the least chosen one

  [[nodiscard]] bool is_defined() const { return probabilities_e.defined(); }
};

// Of one router: the softmax over all of its experts, fp32, and how many rows chose each expert, int64.
[[nodiscard]] ExpertBalance balance_of(const at::Tensor& probabilities_ne, const at::Tensor& chosen_e);

// Of the layers below and of one more; either may be undefined.
[[nodiscard]] ExpertBalance sum_of(const ExpertBalance& below, const ExpertBalance& own);

// What a microbatch reports: fp32 scalars.
struct BalanceReport {
  at::Tensor auxiliary_loss;  // differentiable; 1 per chosen expert of a row where all experts have the same load and
                              // probability
  at::Tensor most_loaded;     // of the mean load of an expert: 1 is even; mean over layers
  at::Tensor least_loaded;    // likewise; 0: in each layer there is an expert that no token chose
};
// REQUIRES: it is defined.
[[nodiscard]] BalanceReport report_of(const ExpertBalance& balance);

}  // namespace rp::models
