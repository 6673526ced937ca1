#include "models/layers/delta_net/gpu_operators.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "kernels/gpu_kernels.h"
#include "models/layers/documents.h"
#include "models/layers/kernel_call.h"

namespace rp::models {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor as_fp32(const at::Tensor& x) { return x.to(at::kFloat); }

// Sums [b, t, c] over b and t.
at::Tensor sum_of_tokens(const at::Tensor& x) { return x.flatten(0, 1).sum(0); }

// The weight as the kernels read it: fp32 [taps, channels].
at::Tensor weight_by_taps(const at::Tensor& weight) { return as_fp32(weight.flatten(1)).t().contiguous(); }

// `y` and `weight` are as the kernels read them.
GpuConvolution convolution_call(const at::Tensor& y_btc, const at::Tensor& weight_jc, const at::Tensor& positions_bt) {
  return {.y = y_btc.const_data_ptr(),
          .weight = weight_jc.const_data_ptr<float>(),
          .positions = positions_bt.defined() ? positions_bt.const_data_ptr<std::int64_t>() : nullptr,
          .sequences = y_btc.size(0),
          .length = y_btc.size(1),
          .channels = y_btc.size(2),
          .taps = weight_jc.size(0)};
}

struct GpuConvolutionNode : torch::autograd::Function<GpuConvolutionNode> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& y_any, const at::Tensor& weight,
                            const std::optional<at::Tensor>& documents) {
    const at::Tensor y = y_any.contiguous(), x = at::empty_like(y), weight_jc = weight_by_taps(weight);
    const at::Tensor positions_bt = documents ? document_positions(*documents, y.size(1)) : at::Tensor();
    GpuConvolution call = convolution_call(y, weight_jc, positions_bt);
    call.x = x.mutable_data_ptr();
    gpu_kernels().convolution(kernel_dtype(y), call, gpu_kernels().current_stream());
    context->save_for_backward({y, weight, positions_bt});
    return x;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &y = saved[0], grad_x = grads[0].contiguous(), weight_jc = weight_by_taps(saved[1]);
    const at::Tensor grad_y = at::empty_like(y);
    GpuConvolutionGrad call = {.forward = convolution_call(y, weight_jc, saved[2]),
                               .grad_x = grad_x.const_data_ptr(),
                               .grad_y = grad_y.mutable_data_ptr()};
    at::Tensor grad_weight, partial_sums;
    if (context->needs_input_grad(1)) {
      grad_weight = at::empty_like(weight_jc);
      partial_sums = at::empty({num_convolution_sums(y.size(0), y.size(1)), weight_jc.numel()}, weight_jc.options());
      call.grad_weight = grad_weight.mutable_data_ptr<float>();
      call.partial_sums = partial_sums.mutable_data_ptr<float>();
    }
    gpu_kernels().convolution_grad(kernel_dtype(y), call, gpu_kernels().current_stream());
    if (grad_weight.defined()) grad_weight = grad_weight.t().contiguous().view(saved[1].sizes());
    return {grad_y, grad_weight, at::Tensor()};
  }
};

struct GatesOfRule : torch::autograd::Function<GatesOfRule> {
  static variable_list forward(AutogradContext* context, const at::Tensor& a_bth, const at::Tensor& b_bth,
                               const at::Tensor& a_log_h, const at::Tensor& dt_bias_h) {
    context->save_for_backward({a_bth, b_bth, a_log_h, dt_bias_h});
    const at::Tensor steps = at::softplus(as_fp32(a_bth) + as_fp32(dt_bias_h));
    return {-as_fp32(a_log_h).exp() * steps, as_fp32(b_bth).sigmoid().to(b_bth.scalar_type())};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor x = as_fp32(saved[0]) + as_fp32(saved[3]), factor = -as_fp32(saved[2]).exp();
    constexpr double kThreshold = 20;  // of softplus
    const at::Tensor grad_x = grads[0] * factor * at::where(x > kThreshold, at::ones_like(x), x.sigmoid());
    const at::Tensor beta = as_fp32(saved[1]).sigmoid();
    return {grad_x.to(saved[0].scalar_type()), (as_fp32(grads[1]) * beta * (1 - beta)).to(saved[1].scalar_type()),
            sum_of_tokens(grads[0] * factor * at::softplus(x)), sum_of_tokens(grad_x)};
  }
};

GpuGatedNorm gated_norm_call(const at::Tensor& o, const at::Tensor& z, const at::Tensor& weight_e, double epsilon) {
  return {.o = o.const_data_ptr(),
          .z = z.const_data_ptr(),
          .weight = weight_e.const_data_ptr(),
          .columns = o.size(-1),
          .epsilon = static_cast<float>(epsilon)};
}

std::int64_t num_rows(const at::Tensor& x) { return x.numel() / std::max<std::int64_t>(1, x.size(-1)); }

struct GpuGatedNormNode : torch::autograd::Function<GpuGatedNormNode> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& o_any, const at::Tensor& z_any,
                            const at::Tensor& weight_any, double epsilon) {
    const at::Tensor o = o_any.contiguous(), z = z_any.contiguous(), weight_e = weight_any.contiguous();
    const at::Tensor y = at::empty_like(o);
    GpuGatedNorm call = gated_norm_call(o, z, weight_e, epsilon);
    call.y = y.mutable_data_ptr();
    gpu_kernels().gated_norm(kernel_dtype(o), call, num_rows(o), gpu_kernels().current_stream());
    context->save_for_backward({o, z, weight_e});
    context->saved_data["epsilon"] = epsilon;
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &o = saved[0], &z = saved[1], &weight_e = saved[2], grad_y = grads[0].contiguous();
    const at::TensorOptions floats = weight_e.options().dtype(at::kFloat);
    const at::Tensor grad_o = at::empty_like(o), grad_z = at::empty_like(z);
    const at::Tensor grad_weight = at::empty(weight_e.sizes(), floats);
    const at::Tensor partial_sums = at::empty({num_gated_norm_sums(num_rows(o)), o.size(-1)}, floats);
    gpu_kernels().gated_norm_grad(
        kernel_dtype(o),
        {.forward = gated_norm_call(o, z, weight_e, context->saved_data["epsilon"].toDouble()),
         .grad_y = grad_y.const_data_ptr(),
         .grad_o = grad_o.mutable_data_ptr(),
         .grad_z = grad_z.mutable_data_ptr(),
         .grad_weight = grad_weight.mutable_data_ptr<float>(),
         .partial_sums = partial_sums.mutable_data_ptr<float>()},
        num_rows(o), gpu_kernels().current_stream());
    return {grad_o, grad_z, grad_weight, at::Tensor()};
  }
};

}  // namespace

at::Tensor gpu_convolution(const at::Tensor& y_btc, const at::Tensor& weight_cj, const at::Tensor& documents_bk) {
  return GpuConvolutionNode::apply(y_btc, weight_cj, where_defined(documents_bk));
}

DecayAndBeta gpu_gates(const at::Tensor& a_bth, const at::Tensor& b_bth, const at::Tensor& a_log_h,
                       const at::Tensor& dt_bias_h) {
  const variable_list result = GatesOfRule::apply(a_bth, b_bth, a_log_h, dt_bias_h);
  return {result[0], result[1]};
}

at::Tensor gpu_gated_norm(const at::Tensor& o_bthe, const at::Tensor& z_bthe, const at::Tensor& weight_e,
                          double epsilon) {
  return GpuGatedNormNode::apply(o_bthe, z_bthe, weight_e, epsilon);
}

}  // namespace rp::models
