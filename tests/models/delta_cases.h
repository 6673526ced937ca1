// tests/models/delta_cases.h
// Makes inputs of the gated delta rule, and computes it token by token in fp64.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <array>
#include <vector>

#include "models/layers/delta_net/delta_rule.h"
#include "models/layers/documents.h"
#include "tests/models/bound_layers.h"

namespace rp::models {

struct DeltaSizes {
  std::int64_t b = 1, t = 1, k = 1, d = 16, h = 1, e = 16;
};

// The inputs q, k, v, decay and beta, and the gradient of the result.
struct DeltaCase {
  std::array<at::Tensor, 5> inputs;
  at::Tensor grad_o;
};

inline DeltaCase make_delta_case(const DeltaSizes& s, at::ScalarType dtype = at::kFloat) {
  const auto normal = [&](at::IntArrayRef shape) { return at::randn(shape).to(dtype); };
  return {{normal({s.b, s.t, s.k, s.d}), normal({s.b, s.t, s.k, s.d}), normal({s.b, s.t, s.h, s.e}),
           -at::rand({s.b, s.t, s.h}) * 0.3, at::sigmoid(at::randn({s.b, s.t, s.h})).to(dtype)},
          normal({s.b, s.t, s.h, s.e})};
}

inline DeltaRuleInputs rule_inputs(const std::array<at::Tensor, 5>& x, const at::Tensor& documents_bk = {}) {
  return {x[0], x[1], x[2], x[3], x[4], documents_bk};
}

// Returns the result of `rule`, and the gradients of q, k, v, decay and beta.
template <typename Rule>
std::vector<at::Tensor> result_and_gradients(const DeltaCase& c, const Rule& rule) {
  std::array<at::Tensor, 5> leaves;
  for (std::size_t i = 0; i < 5; ++i) leaves[i] = c.inputs[i].detach().clone().requires_grad_(true);
  const at::Tensor o = rule(leaves);
  torch::autograd::backward({o}, {c.grad_o});
  std::vector<at::Tensor> result = {o.detach()};
  for (const at::Tensor& leaf : leaves) result.push_back(leaf.grad());
  return result;
}

inline std::vector<at::Tensor> our_rule(const DeltaCase& c, const at::Tensor& documents_bk = {}) {
  return result_and_gradients(c, [&](const auto& x) { return gated_delta_rule(rule_inputs(x, documents_bk)); });
}

// The rule as it is defined, one token after the other. `starts_bt` is 1 for the first token of
// each document.
inline at::Tensor delta_recurrence(const std::array<at::Tensor, 5>& x, const at::Tensor& starts_bt) {
  const std::int64_t share = x[2].size(2) / x[0].size(2);
  const auto normalised = [&](const at::Tensor& rows) {
    return (rows * at::rsqrt(rows.square().sum(-1, true) + 1e-6)).repeat_interleave(share, 2);
  };
  const at::Tensor q = normalised(x[0]) / std::sqrt(static_cast<double>(x[0].size(3))), k = normalised(x[1]);
  at::Tensor state = at::zeros({x[2].size(0), x[2].size(2), x[0].size(3), x[2].size(3)}, x[0].options());
  std::vector<at::Tensor> result;
  for (std::int64_t t = 0; t < x[0].size(1); ++t) {
    const at::Tensor kept = x[3].select(1, t).exp() * (1 - starts_bt.select(1, t).unsqueeze(1));
    state = state * kept.unsqueeze(-1).unsqueeze(-1);
    const at::Tensor key = k.select(1, t).unsqueeze(-1);
    const at::Tensor u = x[4].select(1, t).unsqueeze(-1) * (x[2].select(1, t) - (state * key).sum(2));
    state = state + key * u.unsqueeze(2);
    result.push_back((state * q.select(1, t).unsqueeze(-1)).sum(2));
  }
  return at::stack(result, 1);
}

// Returns the result and the gradients of the recurrence in fp64.
inline std::vector<at::Tensor> expected_rule(const DeltaCase& c, const at::Tensor& documents_bk = {}) {
  const std::int64_t b = c.inputs[0].size(0), t = c.inputs[0].size(1);
  const at::Tensor positions =
      documents_bk.defined() ? document_positions(documents_bk, t) : at::arange(t).expand({b, t});
  DeltaCase wide;
  for (std::size_t i = 0; i < 5; ++i) wide.inputs[i] = c.inputs[i].to(at::kDouble);
  wide.grad_o = c.grad_o.to(at::kDouble);
  return result_and_gradients(wide,
                              [&](const auto& x) { return delta_recurrence(x, positions.eq(0).to(at::kDouble)); });
}

// Computes with this number of threads.
template <typename Run>
auto with_threads(int count, const Run& run) {
  const int before = at::get_num_threads();
  at::set_num_threads(count);
  const auto result = run();
  at::set_num_threads(before);
  return result;
}

}  // namespace rp::models
