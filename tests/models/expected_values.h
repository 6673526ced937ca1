// tests/models/expected_values.h
// Computes expected values that several tests use: the loss from complete logits.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "models/layers/causal_lm_loss.h"
#include "tests/models/golden.h"

namespace rp::models {

inline at::Tensor leaf(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  return at::randn(shape, at::kFloat).to(dtype).requires_grad_(true);
}

// The inputs of the loss.
struct LossCase {
  at::Tensor hidden_bth, weight_vh, labels_bt;
};

inline at::Tensor our_loss(const LossCase& c, double divisor, std::int64_t chunk_tokens = 0) {
  return causal_lm_loss_of({c.hidden_bth, c.weight_vh}, {c.labels_bt, at::scalar_tensor(divisor)}, {}, chunk_tokens)
      .at(0);
}

// Returns {loss, gradient of hidden, gradient of weight, z-loss} from complete logits, in fp64. The
// gradients are those of the sum of both losses, times `factor`.
inline std::vector<at::Tensor> plain_loss(const LossCase& c, double divisor, double factor = 1,
                                          const CausalLmLossSettings& settings = {}) {
  const at::Tensor hidden = c.hidden_bth.detach().to(at::kDouble).requires_grad_(true);
  const at::Tensor weight = c.weight_vh.detach().to(at::kDouble).requires_grad_(true);
  at::Tensor logits = at::linear(hidden, weight).flatten(0, 1);
  if (settings.logit_softcap != 0) logits = settings.logit_softcap * (logits / settings.logit_softcap).tanh();
  const at::Tensor loss = at::cross_entropy_loss(logits, c.labels_bt.flatten(), {}, at::Reduction::Sum, -100) / divisor;
  const at::Tensor log_sums = logits.logsumexp(1).masked_fill(c.labels_bt.flatten().eq(-100), 0);
  const at::Tensor z_loss = settings.z_loss * log_sums.square().sum() / divisor;
  torch::autograd::backward({(loss + z_loss) * factor});
  return {loss.detach(), hidden.grad(), weight.grad(), z_loss.detach()};
}

}  // namespace rp::models
