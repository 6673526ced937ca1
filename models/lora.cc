#include "models/lora.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "models/grouped_linear.h"
#include "models/kernel_call.h"

namespace rp::models {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// fp16 on the CPU is multiplied in fp32 (linear.h).
at::Tensor widened(const at::Tensor& x) { return x.scalar_type() == at::kHalf && !x.is_cuda() ? x.to(at::kFloat) : x; }

// y + scale (x A^T) B^T. The narrow product is rounded to the dtype of x, the sum once more.
struct AddPair : torch::autograd::Function<AddPair> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& y, const at::Tensor& x, const at::Tensor& a_ri, const at::Tensor& b_or,
                            double scale, bool is_read) {
    const at::Tensor inner_nr = at::mm(widened(rows_of(x)), widened(a_ri).t()).mul_(scale);
    context->save_for_backward({x, a_ri, b_or, inner_nr});
    context->saved_data["scale"] = scale;
    if (!is_read) return at::empty_like(y);
    return at::addmm(widened(rows_of(y)), inner_nr, widened(b_or).t()).to(y.scalar_type()).view(y.sizes());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &a_ri = saved[1], &b_or = saved[2], &inner_nr = saved[3];
    const at::Tensor grad_no = widened(rows_of(grads[0]));
    const at::Tensor grad_nr = at::mm(grad_no, widened(b_or)).mul_(context->saved_data["scale"].toDouble());
    variable_list result(6);
    result[0] = grads[0];
    if (context->needs_input_grad(1)) result[1] = at::mm(grad_nr, widened(a_ri)).to(x.scalar_type()).view(x.sizes());
    if (context->needs_input_grad(2)) result[2] = weight_gradient(a_ri, grad_nr.t(), widened(rows_of(x)));
    if (context->needs_input_grad(3)) result[3] = weight_gradient(b_or, grad_no.t(), inner_nr);
    return result;
  }
};

// The lengths of the rows of W + s B A, [o] in fp32, without that matrix: |W|^2 + 2 s (W A^T) B + s^2 (B A A^T) B by rows.
at::Tensor row_lengths(const at::Tensor& weight_oi, const LoraPair& pair) {
  const c10::NoGradGuard no_grad;
  const at::Tensor a_ri = pair.a_ri.to(at::kFloat), b_or = pair.b_or.to(at::kFloat);
  const at::Tensor weights = at::linalg_vector_norm(weight_oi, 2, at::IntArrayRef{1}, /*keepdim=*/false, at::kFloat).square();
  const at::Tensor cross_or = at::mm(widened(weight_oi), widened(pair.a_ri).t()).to(at::kFloat);
  const at::Tensor pairs_or = at::mm(b_or, at::mm(a_ri, a_ri.t()));
  return (weights + ((2 * pair.scale) * cross_or + (pair.scale * pair.scale) * pairs_or).mul(b_or).sum(1)).clamp_min(0).sqrt();
}

at::Tensor plain_product(const at::Tensor& x, const at::Tensor& weight_oi) { return linear(x, LinearWeights{.weight_oi = weight_oi}); }

// Without dropout: c (W x + s B A x) + bias, where c is the trained length by that of the row; with it, as PEFT,
// W x + (c - 1) W dropout(x) + c s B A dropout(x) + bias.
at::Tensor scaled_rows(const at::Tensor& y, const at::Tensor& x, const at::Tensor& dropped, const LinearWeights& weights) {
  const LoraPair& pair = weights.lora;
  const at::Tensor factor_o = pair.magnitude_o.to(at::kFloat) / row_lengths(weights.weight_oi, pair);
  const bool drops = !dropped.is_same(x);
  at::Tensor product = drops || weights.bias_o.defined() ? plain_product(dropped, weights.weight_oi) : y;
  const at::Tensor with_pair = AddPair::apply(product, dropped, pair.a_ri, pair.b_or, pair.scale, true);
  at::Tensor sum = with_pair.to(at::kFloat) * factor_o;
  if (drops) {
    sum = sum - product.to(at::kFloat) + y.to(at::kFloat);  // y has the bias
  } else if (weights.bias_o.defined()) {
    sum = sum + weights.bias_o.to(at::kFloat);
  }
  return sum.to(y.scalar_type());
}

at::Tensor with_dropout(const at::Tensor& x, const LoraPair& pair) { return pair.dropout > 0 ? at::dropout(x, pair.dropout, /*train=*/true) : x; }

}  // namespace

at::Tensor adapted(const at::Tensor& y, const at::Tensor& x, const LinearWeights& weights, bool is_read) {
  const LoraPair& pair = weights.lora;
  const at::Tensor dropped = with_dropout(x, pair);
  if (pair.magnitude_o.defined()) return scaled_rows(y, x, dropped, weights);
  return AddPair::apply(y, dropped, pair.a_ri, pair.b_or, pair.scale, is_read);
}

at::Tensor adapted_experts(const at::Tensor& y, const at::Tensor& x_nh, const LoraPair& pair, const at::Tensor& counts_e) {
  const at::Tensor inner_nr = grouped_linear(with_dropout(x_nh, pair), pair.a_ri, counts_e);
  return y + grouped_linear(pair.scale == 1 ? inner_nr : inner_nr * pair.scale, pair.b_or, counts_e);
}

at::Tensor merged_weight(const at::Tensor& weight_oi, const LoraPair& pair) {
  const c10::NoGradGuard no_grad;
  const at::Tensor sum_oi = at::addmm(weight_oi.to(at::kFloat), pair.b_or.to(at::kFloat), pair.a_ri.to(at::kFloat), 1, pair.scale);
  if (!pair.magnitude_o.defined()) return sum_oi;
  return sum_oi * (pair.magnitude_o.to(at::kFloat) / at::linalg_vector_norm(sum_oi, 2, at::IntArrayRef{1})).unsqueeze(1);
}

}  // namespace rp::models
