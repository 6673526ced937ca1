#include "models/layers/lora.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "models/layers/grouped_linear.h"
#include "models/layers/kernel_call.h"

namespace rp::models {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Computes y + scale (x A^T) B^T. The narrow product is rounded to the dtype of x, then the sum is
// rounded.
struct AddPair : torch::autograd::Function<AddPair> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& y, const at::Tensor& x, const at::Tensor& a_ri,
                            const at::Tensor& b_or, double scale, bool is_read) {
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

// A list without gaps of tensors that some of the weights have.
struct SomeTensors {
  std::vector<at::Tensor> tensors{};
  std::vector<std::int64_t> places{};  // for each weight the index in `tensors`, or -1

  void add(const at::Tensor& tensor) {
    places.push_back(tensor.defined() ? static_cast<std::int64_t>(tensors.size()) : -1);
    if (tensor.defined()) tensors.push_back(tensor);
  }
};

// Implements adapted_linears(). p is the number of pairs. Their matrices A are stacked vertically,
// and the results of the products with them are side by side.
struct AdaptedLinears : torch::autograd::Function<AdaptedLinears> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, at::TensorList weights,
                               at::TensorList biases, at::TensorList as_ri, at::TensorList bs_or,
                               const std::vector<std::int64_t>& bias_of, const std::vector<std::int64_t>& pair_of,
                               double scale, bool is_read) {
    const at::Tensor x_ni = rows_of(x), inner_npr = at::mm(x_ni, at::cat(as_ri).t()).mul_(scale);
    const std::int64_t rank = as_ri[0].size(0);
    variable_list saved = {x, inner_npr}, results;
    saved.insert(saved.end(), weights.begin(), weights.end());
    saved.insert(saved.end(), as_ri.begin(), as_ri.end());
    saved.insert(saved.end(), bs_or.begin(), bs_or.end());
    for (std::size_t i = 0; i < weights.size(); ++i) {
      std::vector<std::int64_t> shape = x.sizes().vec();
      shape.back() = weights[i].size(0);
      if (!is_read) {
        results.push_back(at::empty(shape, x.options()));
        continue;
      }
      const std::optional<at::Tensor> bias_o = bias_of[i] < 0 ? std::nullopt : std::make_optional(biases[bias_of[i]]);
      at::Tensor y_no = at::linear(x_ni, weights[i], bias_o);
      if (pair_of[i] >= 0) y_no.addmm_(inner_npr.narrow(1, pair_of[i] * rank, rank), bs_or[pair_of[i]].t());
      results.push_back(y_no.view(shape));
    }
    context->save_for_backward(saved);
    context->saved_data["bias_of"] = bias_of;
    context->saved_data["pair_of"] = pair_of;
    context->saved_data["num_biases"] = static_cast<std::int64_t>(biases.size());
    context->saved_data["scale"] = scale;
    context->set_materialize_grads(false);
    return results;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const std::vector<std::int64_t> bias_of = context->saved_data["bias_of"].toIntVector(),
                                    pair_of = context->saved_data["pair_of"].toIntVector();
    const std::size_t num_weights = bias_of.size(), num_pairs = (saved.size() - 2 - num_weights) / 2;
    const at::Tensor x_ni = rows_of(saved[0]);
    const at::Tensor* as_ri = &saved[2 + num_weights];
    const at::Tensor* bs_or = as_ri + num_pairs;
    const std::int64_t rank = as_ri[0].size(0);
    const std::size_t first_bias = 1 + num_weights,
                      first_a = first_bias + static_cast<std::size_t>(context->saved_data["num_biases"].toInt());
    variable_list result(first_a + 2 * num_pairs +
                         4);  // x, weights, biases, pairs, and the arguments that are not tensors
    const at::Tensor grad_npr = at::zeros({x_ni.size(0), static_cast<std::int64_t>(num_pairs) * rank}, x_ni.options());
    at::Tensor grad_ni;
    for (std::size_t i = grads.size(); i-- > 0;) {
      if (!grads[i].defined()) continue;
      const at::Tensor grad_no = rows_of(grads[i]);
      if (context->needs_input_grad(0)) {
        if (grad_ni.defined()) grad_ni.addmm_(grad_no, saved[2 + i]);
        else grad_ni = at::mm(grad_no, saved[2 + i]);
      }
      if (bias_of[i] >= 0) {
        const std::size_t bias = first_bias + static_cast<std::size_t>(bias_of[i]);
        if (context->needs_input_grad(bias)) result[bias] = grad_no.sum(0);
      }
      if (pair_of[i] < 0) continue;
      const auto pair = static_cast<std::size_t>(pair_of[i]);
      at::Tensor grad_nr = grad_npr.narrow(1, pair_of[i] * rank, rank);
      at::mm_out(grad_nr, grad_no, bs_or[pair]);
      const std::size_t b = first_a + num_pairs + pair;
      if (context->needs_input_grad(b))
        result[b] = weight_gradient(bs_or[pair], grad_no.t(), saved[1].narrow(1, pair_of[i] * rank, rank));
    }
    grad_npr.mul_(context->saved_data["scale"].toDouble());
    if (grad_ni.defined())
      result[0] = grad_ni.addmm_(grad_npr, at::cat(at::TensorList(as_ri, num_pairs))).view(saved[0].sizes());
    const at::Tensor grad_pri = at::mm(grad_npr.t(), x_ni);
    for (std::size_t pair = 0; pair < num_pairs; ++pair) {
      if (!context->needs_input_grad(first_a + pair)) continue;
      const at::Tensor grad_ri = grad_pri.narrow(0, static_cast<std::int64_t>(pair) * rank, rank);
      if (takes_gradient_in_place(as_ri[pair])) add_to_floats(as_ri[pair].grad(), grad_ri);
      else result[first_a + pair] = grad_ri;
    }
    return result;
  }
};

// Returns the lengths of the rows of W + s B A, [o] in fp32, without computing that matrix. Their
// squares are |W|^2 + 2 s (W A^T) B + s^2 (B A A^T) B, by rows.
at::Tensor row_lengths(const at::Tensor& weight_oi, const LoraPair& pair) {
  const c10::NoGradGuard no_grad;
  const at::Tensor a_ri = pair.a_ri.to(at::kFloat), b_or = pair.b_or.to(at::kFloat);
  const at::Tensor weights =
      at::linalg_vector_norm(weight_oi, 2, at::IntArrayRef{1}, /*keepdim=*/false, at::kFloat).square();
  const at::Tensor cross_or = at::mm(widened(weight_oi), widened(pair.a_ri).t()).to(at::kFloat);
  const at::Tensor pairs_or = at::mm(b_or, at::mm(a_ri, a_ri.t()));
  return (weights + ((2 * pair.scale) * cross_or + (pair.scale * pair.scale) * pairs_or).mul(b_or).sum(1))
      .clamp_min(0)
      .sqrt();
}

at::Tensor plain_product(const at::Tensor& x, const at::Tensor& weight_oi) {
  return linear(x, LinearWeights{.weight_oi = weight_oi});
}

// Without dropout: c (W x + s B A x) + bias, where c is the trained length divided by that of the
// row. With dropout, as in PEFT: W x + (c - 1) W dropout(x) + c s B A dropout(x) + bias.
at::Tensor scaled_rows(const at::Tensor& y, const at::Tensor& x, const at::Tensor& dropped,
                       const LinearWeights& weights) {
  const LoraPair& pair = weights.lora;
  const at::Tensor factor_o = pair.magnitude_o.to(at::kFloat) / row_lengths(weights.weight_oi, pair);
  const bool drops = !dropped.is_same(x);
  at::Tensor product = drops || weights.bias_o.defined() ? plain_product(dropped, weights.weight_oi) : y;
  const at::Tensor with_pair = AddPair::apply(product, dropped, pair.a_ri, pair.b_or, pair.scale, true);
  at::Tensor sum = with_pair.to(at::kFloat) * factor_o;
  if (drops) {
    sum = sum - product.to(at::kFloat) + y.to(at::kFloat);  // y includes the bias
  } else if (weights.bias_o.defined()) {
    sum = sum + weights.bias_o.to(at::kFloat);
  }
  return sum.to(y.scalar_type());
}

at::Tensor with_dropout(const at::Tensor& x, const LoraPair& pair) {
  return pair.dropout > 0 ? at::dropout(x, pair.dropout, /*train=*/true) : x;
}

}  // namespace

at::Tensor adapted(const at::Tensor& y, const at::Tensor& x, const LinearWeights& weights, bool is_read) {
  const LoraPair& pair = weights.lora;
  const at::Tensor dropped = with_dropout(x, pair);
  if (pair.magnitude_o.defined()) return scaled_rows(y, x, dropped, weights);
  return AddPair::apply(y, dropped, pair.a_ri, pair.b_or, pair.scale, is_read);
}

bool takes_adapted_linears(const at::Tensor& x, const std::vector<LinearWeights>& weights) {
  const auto has_pair = [](const LinearWeights& one) { return one.lora.a_ri.defined(); };
  const auto is_plain = [&](const LinearWeights& one) {
    return !one.weight_oi.requires_grad() && !one.lora.magnitude_o.defined() &&
           (!has_pair(one) || one.lora.dropout == 0);
  };
  return !runs_on_gpu(x) && x.scalar_type() != at::kHalf && std::ranges::any_of(weights, has_pair) &&
         std::ranges::all_of(weights, is_plain);
}

std::vector<at::Tensor> adapted_linears(const at::Tensor& x, const std::vector<LinearWeights>& weights, bool is_read) {
  std::vector<at::Tensor> factors;
  SomeTensors biases, as_ri, bs_or;
  double scale = 1;  // all pairs of a layer have the same scale
  for (const LinearWeights& one : weights) {
    factors.push_back(one.weight_oi);
    biases.add(one.bias_o);
    as_ri.add(one.lora.a_ri);
    bs_or.add(one.lora.b_or);
    if (one.lora.a_ri.defined()) scale = one.lora.scale;
  }
  return AdaptedLinears::apply(x, at::TensorList(factors), at::TensorList(biases.tensors),
                               at::TensorList(as_ri.tensors), at::TensorList(bs_or.tensors), biases.places,
                               as_ri.places, scale, is_read);
}

at::Tensor adapted_experts(const at::Tensor& y, const at::Tensor& x_nh, const LoraPair& pair,
                           const at::Tensor& counts_e) {
  const at::Tensor inner_nr = grouped_linear(with_dropout(x_nh, pair), pair.a_ri, counts_e);
  return y + grouped_linear(pair.scale == 1 ? inner_nr : inner_nr * pair.scale, pair.b_or, counts_e);
}

at::Tensor merged_weight(const at::Tensor& weight_oi, const LoraPair& pair) {
  const c10::NoGradGuard no_grad;
  const at::Tensor sum_oi =
      at::addmm(weight_oi.to(at::kFloat), pair.b_or.to(at::kFloat), pair.a_ri.to(at::kFloat), 1, pair.scale);
  if (!pair.magnitude_o.defined()) return sum_oi;
  return sum_oi *
         (pair.magnitude_o.to(at::kFloat) / at::linalg_vector_norm(sum_oi, 2, at::IntArrayRef{1})).unsqueeze(1);
}

}  // namespace rp::models
