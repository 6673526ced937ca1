// models/layers/delta_net/gates.h
// Computes the decay and the rate with which the gated delta rule forgets and learns.
#pragma once

#include <ATen/core/Tensor.h>

namespace rp::models {

struct DecayAndBeta {
  at::Tensor decay_bth;  // fp32, not positive: the logarithm of the state's factor
  at::Tensor beta_bth;   // in the activations' dtype, between 0 and 1
};

// Returns decay = -exp(a_log) softplus(a + dt_bias), all in fp32, where softplus(x) is x above 20
// (LibTorch's threshold), and beta = sigmoid(b), rounded to b's dtype, for b sequences, t tokens
// and h value heads.
//
// a and b have one dtype of bf16, fp16 and fp32; a_log and dt_bias may have another. Differentiable
// in all of them; the gradients of a_log and dt_bias are fp32. Results depend neither on the number
// of threads nor, except for those two gradients, on the other sequences. Throws c10::Error, naming
// the operator, for tensors on several devices or wrong shapes.
[[nodiscard]] DecayAndBeta gate_and_beta(const at::Tensor& a_bth, const at::Tensor& b_bth, const at::Tensor& a_log_h,
                                         const at::Tensor& dt_bias_h);

}  // namespace rp::models
