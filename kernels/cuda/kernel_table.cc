#include "kernels/cuda/kernels.h"

namespace rp::cuda {

const models::GpuKernels& kernel_table() {
  static constexpr models::GpuKernels kTable = {.takes_cpu_memory = false,
                                                .libtorch_groups_bf16 = false,
                                                .current_stream = nullptr,
                                                .rms_norm = rms_norm,
                                                .add_rms_norm = add_rms_norm,
                                                .rms_norm_grad = rms_norm_grad,
                                                .rotary_table = rotary_table,
                                                .rotate = rotate,
                                                .glu = glu,
                                                .glu_grad = glu_grad,
                                                .cross_entropy = cross_entropy,
                                                .sum_losses = sum_losses,
                                                .scale = scale,
                                                .round_gradient = round_gradient,
                                                .embed = embed,
                                                .embed_grad = embed_grad,
                                                .plan_experts = plan_experts,
                                                .grouped_linear = grouped_linear,
                                                .grouped_linear_grad = grouped_linear_grad,
                                                .grouped_weight_grad = grouped_weight_grad,
                                                .expand_weights = expand_weights,
                                                .convolution = convolution,
                                                .convolution_grad = convolution_grad,
                                                .gated_norm = gated_norm,
                                                .gated_norm_grad = gated_norm_grad,
                                                .delta_rule = delta_rule,
                                                .delta_rule_grad = delta_rule_grad};
  return kTable;
}

}  // namespace rp::cuda
