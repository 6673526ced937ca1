// tests/models/expected_values.h
// What several tests compare with: the loss by whole logits.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "models/causal_lm_loss.h"
#include "tests/models/golden.h"

namespace rp::models {

inline at::Tensor leaf(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  return at::randn(shape, at::kFloat).to(dtype).requires_grad_(true);
}

// Inputs of the loss.
struct LossCase {
  at::Tensor hidden_bth, weight_vh, labels_bt;
};

inline at::Tensor our_loss(const LossCase& c, double divisor, std::int64_t chunk_tokens = 0) {
  return causal_lm_loss_of({c.hidden_bth, c.weight_vh}, {c.labels_bt, at::scalar_tensor(divisor)}, chunk_tokens);
}

// {loss, gradient of hidden, gradient of weight} with whole logits, in fp64; the gradients times `factor`.
inline std::vector<at::Tensor> plain_loss(const LossCase& c, double divisor, double factor = 1) {
  const at::Tensor hidden = c.hidden_bth.detach().to(at::kDouble).requires_grad_(true);
  const at::Tensor weight = c.weight_vh.detach().to(at::kDouble).requires_grad_(true);
  const at::Tensor logits = at::linear(hidden, weight).flatten(0, 1);
  const at::Tensor loss = at::cross_entropy_loss(logits, c.labels_bt.flatten(), {}, at::Reduction::Sum, -100) / divisor;
  torch::autograd::backward({loss * factor});
  return {loss.detach(), hidden.grad(), weight.grad()};
}

}  // namespace rp::models
