// models/layers/delta_net/gpu_operators.h
// The operators of this room on a GPU, except the rule itself. Convolution and norm are computed by
// the kernels of kernels/gpu_kernels.h; the gates, which have a hundredth of their elements, with
// LibTorch's operators. Each is differentiable, rounds where the loops for the CPU do, and keeps only
// its inputs and the positions of tokens for the backward pass. Nothing waits for the GPU, so wrong
// document lengths are not noticed here (documents.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "models/layers/delta_net/gates.h"

namespace rp::models {

// causal_convolution() of convolution.h.
[[nodiscard]] at::Tensor gpu_convolution(const at::Tensor& y_btc, const at::Tensor& weight_cj,
                                         const at::Tensor& documents_bk);

// gate_and_beta() of gates.h.
[[nodiscard]] DecayAndBeta gpu_gates(const at::Tensor& a_bth, const at::Tensor& b_bth, const at::Tensor& a_log_h,
                                     const at::Tensor& dt_bias_h);

// gated_rms_norm() of gated_norm.h.
[[nodiscard]] at::Tensor gpu_gated_norm(const at::Tensor& o_bthe, const at::Tensor& z_bthe, const at::Tensor& weight_e,
                                        double epsilon);

}  // namespace rp::models
