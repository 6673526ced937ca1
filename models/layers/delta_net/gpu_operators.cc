#include "models/layers/delta_net/gpu_operators.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "models/layers/documents.h"

namespace rp::models {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor as_fp32(const at::Tensor& x) { return x.to(at::kFloat); }

// Rounds fp32 values to a dtype and widens them again.
at::Tensor rounded_to(at::ScalarType dtype, const at::Tensor& x) { return x.to(dtype).to(at::kFloat); }

// Sums [b, t, c] over b and t.
at::Tensor sum_of_tokens(const at::Tensor& x) { return x.flatten(0, 1).sum(0); }

// The derivative of silu.
at::Tensor silu_slope(const at::Tensor& x) {
  const at::Tensor s = x.sigmoid();
  return s * (1 + x * (1 - s));
}

// The terms of a causal convolution by their distance from the current token.
class Taps {
 public:
  Taps(const at::Tensor& weight_cj, const at::Tensor& documents_bk, std::int64_t t)
      : weight_jc_(as_fp32(weight_cj).t()), t_(t) {
    if (documents_bk.defined()) positions_bt1_ = document_positions(documents_bk, t).unsqueeze(2);
  }

  // The distance cannot be longer than a sequence.
  [[nodiscard]] std::int64_t count() const { return std::min(weight_jc_.size(0), t_); }
  [[nodiscard]] at::Tensor weight(std::int64_t distance) const { return weight_jc_[weight_jc_.size(0) - 1 - distance]; }

  // Returns y [b, t, c], moved to later tokens by `distance`; zero where this is before the document.
  [[nodiscard]] at::Tensor before(const at::Tensor& y, std::int64_t distance) const {
    return within(at::constant_pad_nd(y.narrow(1, 0, t_ - distance), {0, 0, distance, 0}), distance);
  }

  // The transposed operation.
  [[nodiscard]] at::Tensor behind(const at::Tensor& y, std::int64_t distance) const {
    return at::constant_pad_nd(within(y, distance).narrow(1, distance, t_ - distance), {0, 0, 0, distance});
  }

 private:
  [[nodiscard]] at::Tensor within(const at::Tensor& y, std::int64_t distance) const {
    return positions_bt1_.defined() && distance > 0 ? y * (positions_bt1_ >= distance) : y;
  }

  const at::Tensor weight_jc_;
  const std::int64_t t_;
  at::Tensor positions_bt1_;  // undefined: each sequence is one document
};

at::Tensor convolved(const at::Tensor& y_btc, const Taps& taps) {
  at::Tensor sum = y_btc * taps.weight(0);
  for (std::int64_t i = 1; i < taps.count(); ++i) sum = sum.addcmul(taps.before(y_btc, i), taps.weight(i));
  return sum;
}

struct ShiftedSum : torch::autograd::Function<ShiftedSum> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& y_btc, const at::Tensor& weight,
                            const std::optional<at::Tensor>& documents) {
    const at::Tensor documents_bk = documents.value_or(at::Tensor());
    context->save_for_backward({y_btc, weight, documents_bk});
    const at::Tensor sum = convolved(as_fp32(y_btc), {weight.flatten(1), documents_bk, y_btc.size(1)});
    return at::silu(rounded_to(y_btc.scalar_type(), sum)).to(y_btc.scalar_type());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor y = as_fp32(saved[0]), weight_cj = saved[1].flatten(1);
    const Taps taps(weight_cj, saved[2], y.size(1));
    const at::Tensor grad_sum = as_fp32(grads[0]) * silu_slope(rounded_to(saved[0].scalar_type(), convolved(y, taps)));
    at::Tensor grad_y = grad_sum * taps.weight(0);
    const bool is_trained = context->needs_input_grad(1);
    const at::Tensor grad_weight = is_trained ? at::zeros(weight_cj.sizes(), y.options()) : at::Tensor();
    for (std::int64_t i = 0; i < taps.count(); ++i) {
      if (i > 0) grad_y = grad_y + taps.behind(grad_sum * taps.weight(i), i);
      if (is_trained)
        grad_weight.select(1, weight_cj.size(1) - 1 - i).copy_(sum_of_tokens(grad_sum * taps.before(y, i)));
    }
    return {grad_y.to(saved[0].scalar_type()), is_trained ? grad_weight.view(saved[1].sizes()) : at::Tensor(),
            at::Tensor()};
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

struct NormTimesGate : torch::autograd::Function<NormTimesGate> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& o_bthe, const at::Tensor& z_bthe,
                            const at::Tensor& weight_e, double epsilon) {
    context->save_for_backward({o_bthe, z_bthe, weight_e});
    context->saved_data["epsilon"] = epsilon;
    const at::ScalarType dtype = o_bthe.scalar_type();
    const at::Tensor o = as_fp32(o_bthe);
    const at::Tensor normal = rounded_to(dtype, o * reciprocal_length(o, epsilon));
    return (rounded_to(dtype, normal * as_fp32(weight_e)) * at::silu(as_fp32(z_bthe))).to(dtype);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::ScalarType dtype = saved[0].scalar_type();
    const at::Tensor o = as_fp32(saved[0]), z = as_fp32(saved[1]), weight = as_fp32(saved[2]), grad = as_fp32(grads[0]);
    const at::Tensor length = reciprocal_length(o, context->saved_data["epsilon"].toDouble()), normal = o * length;
    const at::Tensor rounded = rounded_to(dtype, normal);
    const at::Tensor grad_weighted = grad * at::silu(z), grad_normal = grad_weighted * weight;
    const at::Tensor grad_o = length * (grad_normal - normal * (grad_normal * normal).mean(-1, /*keepdim=*/true));
    return {grad_o.to(dtype), (grad * rounded_to(dtype, rounded * weight) * silu_slope(z)).to(dtype),
            (grad_weighted * rounded).flatten(0, -2).sum(0), at::Tensor()};
  }

 private:
  static at::Tensor reciprocal_length(const at::Tensor& o, double epsilon) {
    return at::rsqrt(o.square().mean(-1, /*keepdim=*/true) + epsilon);
  }
};

}  // namespace

at::Tensor convolution_by_operators(const at::Tensor& y_btc, const at::Tensor& weight_cj,
                                    const at::Tensor& documents_bk) {
  return ShiftedSum::apply(y_btc, weight_cj, documents_bk.defined() ? std::make_optional(documents_bk) : std::nullopt);
}

DecayAndBeta gates_by_operators(const at::Tensor& a_bth, const at::Tensor& b_bth, const at::Tensor& a_log_h,
                                const at::Tensor& dt_bias_h) {
  const variable_list result = GatesOfRule::apply(a_bth, b_bth, a_log_h, dt_bias_h);
  return {result[0], result[1]};
}

at::Tensor gated_norm_by_operators(const at::Tensor& o_bthe, const at::Tensor& z_bthe, const at::Tensor& weight_e,
                                   double epsilon) {
  return NormTimesGate::apply(o_bthe, z_bthe, weight_e, epsilon);
}

}  // namespace rp::models
