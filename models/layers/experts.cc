#include "models/layers/experts.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <limits>

#include "models/layers/grouped_linear.h"
#include "models/layers/lora.h"
#include "models/layers/ops.h"
#include "roundpipe/recompute.h"

namespace rp::models {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Routing {
  at::Tensor experts_nk;        // int64
  at::Tensor weights_nk;        // in the activations' dtype; of kSigmoid and kScaledInput, fp32
  at::Tensor probabilities_ne;  // fp32
};

at::Tensor choose(const at::Tensor& scores_ne, std::int64_t per_token) {
  if (is_recomputing()) return recompute_data().at(0);
  const at::Tensor experts_nk = std::get<1>(scores_ne.detach().topk(per_token, /*dim=*/-1));
  save_for_recompute({experts_nk});
  return experts_nk;
}

// Returns the scores of the experts in a token's groups, and minus infinity for all others.
at::Tensor scores_in_groups(const at::Tensor& scores_ne, const ExpertsConfig& config) {
  if (config.groups_per_token == config.num_groups) return scores_ne;
  const at::Tensor scores_nge = scores_ne.unflatten(1, {config.num_groups, -1});
  const at::Tensor of_groups_ng = std::get<0>(scores_nge.topk(2, /*dim=*/-1)).sum(-1);
  const at::Tensor groups = std::get<1>(of_groups_ng.topk(config.groups_per_token, /*dim=*/-1));
  const at::Tensor is_left_out_ng = at::ones_like(of_groups_ng, at::kBool).scatter_(1, groups, false);
  return scores_nge.masked_fill(is_left_out_ng.unsqueeze(-1), -std::numeric_limits<double>::infinity()).flatten(1);
}

Routing route_by_sigmoid(const at::Tensor& x_nh, const ExpertWeights& weights, const ExpertsConfig& config) {
  constexpr double kSmallest = 1e-20;  // that a sum of weights is divided by
  const at::Tensor scores_ne = linear_in_fp32(x_nh, weights.router).sigmoid();
  const at::Tensor experts_nk =
      choose(scores_in_groups(scores_ne.detach() + weights.correction_e, config), config.per_token);
  at::Tensor weights_nk = scores_ne.gather(1, experts_nk);
  if (config.normalises) weights_nk = weights_nk / (weights_nk.sum(-1, /*keepdim=*/true) + kSmallest);
  if (config.weight_scale != 1) weights_nk = weights_nk * config.weight_scale;
  return {experts_nk, weights_nk, scores_ne / scores_ne.sum(-1, /*keepdim=*/true)};
}

// Returns what the router of kScaledInput multiplies by its weight.
at::Tensor scaled_input(const at::Tensor& x_nh, const ExpertWeights& weights, double epsilon) {
  return rms_norm(x_nh, weights.router_scale_h, epsilon, NormKind::kRounded) *
         (1 / std::sqrt(static_cast<double>(x_nh.size(1))));
}

Routing route(const at::Tensor& x_nh, const ExpertWeights& weights, const ExpertsConfig& config, double epsilon) {
  using Router = ExpertsConfig::Router;
  if (config.router == Router::kSigmoid) return route_by_sigmoid(x_nh, weights, config);
  const bool is_scaled = config.router == Router::kScaledInput;
  const at::Tensor logits_ne = linear(is_scaled ? scaled_input(x_nh, weights, epsilon) : x_nh, weights.router);
  if (config.router == Router::kLargestFirst) {
    const at::Tensor experts_nk = choose(logits_ne, config.per_token);
    return {experts_nk, logits_ne.gather(1, experts_nk).softmax(-1), logits_ne.softmax(-1, at::kFloat)};
  }
  const at::Tensor probabilities_ne = logits_ne.softmax(-1, at::kFloat);
  const at::Tensor experts_nk = choose(probabilities_ne, config.per_token);
  at::Tensor weights_nk = probabilities_ne.gather(1, experts_nk);
  if (config.normalises) weights_nk = weights_nk / weights_nk.sum(-1, /*keepdim=*/true);
  if (is_scaled) {
    const at::Tensor scales_ne = weights.expert_scale_e.to(at::kFloat).expand({x_nh.size(0), config.num});
    return {experts_nk, weights_nk * scales_ne.gather(1, experts_nk), probabilities_ne};
  }
  return {experts_nk, weights_nk.to(x_nh.scalar_type()), probabilities_ne};
}

// Passes the weights of the chosen experts on. The gradient of the correction is the load of each expert, whatever the
// gradient of the weights is: load balancing without a loss needs the loads of a step, which are added as gradients
// are. They are counted in the backward pass, because a forward pass may run twice for a microbatch.
struct CountLoads : torch::autograd::Function<CountLoads> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weights_nk, const at::Tensor& /*correction_e*/,
                            const at::Tensor& counts_e) {
    context->save_for_backward({counts_e});
    return weights_nk;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {grads[0], context->get_saved_variables()[0].to(at::kFloat), at::Tensor()};
  }
};

// The n k pairs of a token and one of its experts, sorted by expert. The pairs of an expert remain
// in the order of tokens.
struct Sorted {
  at::Tensor pairs;    // the pair at each place
  at::Tensor places;   // the place of each pair
  at::Tensor experts;  // the expert of the pair at each place
  at::Tensor counts_e;
};

Sorted sort_by_expert(const at::Tensor& experts_nk, std::int64_t num_experts) {
  const auto [sorted, pairs] =
      experts_nk.flatten().sort(/*stable=*/std::optional<bool>(true), /*dim=*/0, /*descending=*/false);
  const at::Tensor bounds = at::searchsorted(sorted, at::arange(num_experts + 1, sorted.options()));
  const at::Tensor numbers = at::arange(pairs.numel(), pairs.options());
  return {pairs, at::empty_like(pairs).scatter_(0, pairs, numbers), sorted, bounds.diff()};
}

// Copies the rows of tokens [n, h] in the order of the sorted pairs [n k, h]. The gradients of a
// token's pairs are added in fp32.
struct RowsOfPairs : torch::autograd::Function<RowsOfPairs> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_nh, const at::Tensor& pairs,
                            const at::Tensor& places) {
    context->save_for_backward({places});
    context->saved_data["tokens"] = x_nh.size(0);
    return x_nh.index_select(0, pairs.floor_divide(pairs.numel() / x_nh.size(0)));
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor places = context->get_saved_variables()[0];
    const std::int64_t tokens = context->saved_data["tokens"].toInt();
    return {grads[0].index_select(0, places).unflatten(0, {tokens, -1}).sum(1), at::Tensor(), at::Tensor()};
  }
};

// Copies the rows [n k, h] of the sorted pairs in the order of tokens.
struct InOrderOfTokens : torch::autograd::Function<InOrderOfTokens> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, const at::Tensor& pairs,
                            const at::Tensor& places) {
    context->save_for_backward({pairs});
    return rows.index_select(0, places);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {grads[0].index_select(0, context->get_saved_variables()[0]), at::Tensor(), at::Tensor()};
  }
};

// Adds to each row the bias of its expert. The gradient of the biases is a product with ones and
// zeros, because its sums have a fixed order, on a GPU, too.
struct AddBiases : torch::autograd::Function<AddBiases> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows_no, const at::Tensor& bias_eo,
                            const at::Tensor& experts_n) {
    context->save_for_backward({bias_eo, experts_n});
    return rows_no + bias_eo.index_select(0, experts_n);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    variable_list result = {grads[0], at::Tensor(), at::Tensor()};
    if (!context->needs_input_grad(1)) return result;
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &bias_eo = saved[0], &experts_n = saved[1];
    const at::Tensor grad_no = widened(grads[0]);
    const at::Tensor is_of_en =
        at::zeros({bias_eo.size(0), grad_no.size(0)}, grad_no.options()).scatter_(0, experts_n.unsqueeze(0), 1);
    result[1] = weight_gradient(bias_eo, is_of_en, grad_no);
    return result;
  }
};

// Returns rows that are sorted by expert times the experts' weights, with their biases and pairs.
at::Tensor product_of_experts(const at::Tensor& rows, const LinearWeights& weights, const Sorted& sorted) {
  const at::Tensor product = grouped_linear(rows, weights.weight_oi, sorted.counts_e);
  const at::Tensor with_bias =
      weights.bias_o.defined() ? AddBiases::apply(product, weights.bias_o, sorted.experts) : product;
  return weights.lora.a_ri.defined() ? adapted_experts(with_bias, rows, weights.lora, sorted.counts_e) : with_bias;
}

}  // namespace

MixtureOutput mixture_of_experts(const at::Tensor& x, const at::Tensor& router_x, const ExpertWeights& weights,
                                 const ExpertsConfig& config, Activation activation, double epsilon) {
  const at::Tensor x_nh = x.flatten(0, -2);
  const Routing routing = route(router_x.flatten(0, -2), weights, config, epsilon);
  const Sorted sorted = sort_by_expert(routing.experts_nk, config.num);
  const at::Tensor rows = RowsOfPairs::apply(x_nh, sorted.pairs, sorted.places);
  const at::Tensor inner =
      glu(product_of_experts(rows, weights.gate, sorted), product_of_experts(rows, weights.up, sorted), activation);
  const at::Tensor outputs =
      InOrderOfTokens::apply(product_of_experts(inner, weights.down, sorted), sorted.pairs, sorted.places);
  const at::Tensor& correction_e = weights.correction_e;
  const bool counts_loads = correction_e.defined() && correction_e.requires_grad();
  const at::Tensor weights_nk =
      counts_loads ? CountLoads::apply(routing.weights_nk, correction_e, sorted.counts_e) : routing.weights_nk;
  const at::Tensor outputs_nkh = outputs.unflatten(0, {x_nh.size(0), config.per_token});
  const at::Tensor sum_nh = (outputs_nkh * weights_nk.unsqueeze(-1)).sum(1);
  return {.y = sum_nh.to(x.scalar_type()).view(x.sizes()),
          .balance = balance_of(routing.probabilities_ne, sorted.counts_e)};
}

}  // namespace rp::models
