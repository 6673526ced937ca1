// models/layers/delta_net/gated_norm.h
// Normalises the result of the gated delta rule and multiplies it by a gate.
#pragma once

#include <ATen/core/Tensor.h>

namespace rp::models {

// Returns n * silu(z), n = weight_e * o / sqrt(mean(o^2) + epsilon), over the last dimension of o
// and z, which have one shape. As in transformers, o is normalised in fp32 and rounded to its
// dtype, n is rounded again, and silu and the product are computed in fp32 and rounded once.
//
// All tensors have one dtype of bf16, fp16 and fp32. Differentiable in o, z and the weight, whose
// gradient is fp32. Results depend neither on the number of threads nor, except for the weight's
// gradient, on the other rows. Throws c10::Error, naming the operator, for tensors on several devices
// or wrong shapes.
[[nodiscard]] at::Tensor gated_rms_norm(const at::Tensor& o_bthe, const at::Tensor& z_bthe, const at::Tensor& weight_e,
                                        double epsilon);

}  // namespace rp::models
