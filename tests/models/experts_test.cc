#include "models/layers/experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "models/layers/ops.h"
#include "models/recompute_context.h"
#include "tests/models/expected_values.h"

namespace rp::models {
namespace {

constexpr std::int64_t kHidden = 8, kInner = 6, kNum = 6;

ExpertWeights random_weights(at::ScalarType dtype, bool has_bias) {
  const auto linear_of = [&](at::IntArrayRef shape, at::IntArrayRef bias) {
    return LinearWeights{.weight_oi = leaf(shape, dtype), .bias_o = has_bias ? leaf(bias, dtype) : at::Tensor()};
  };
  return {.router = linear_of({kNum, kHidden}, {kNum}),
          .gate = linear_of({kNum, kInner, kHidden}, {kNum, kInner}),
          .up = linear_of({kNum, kInner, kHidden}, {kNum, kInner}),
          .down = linear_of({kNum, kHidden, kInner}, {kNum, kHidden})};
}

std::vector<at::Tensor> leaves_of(const ExpertWeights& weights) {
  std::vector<at::Tensor> leaves;
  for (const LinearWeights* each : {&weights.router, &weights.gate, &weights.up, &weights.down}) {
    leaves.push_back(each->weight_oi);
    if (each->bias_o.defined()) leaves.push_back(each->bias_o);
  }
  return leaves;
}

LinearWeights in_fp64(const LinearWeights& weights) {
  const auto copy = [](const at::Tensor& t) {
    return t.defined() ? t.detach().to(at::kDouble).requires_grad_(true) : t;
  };
  return {.weight_oi = copy(weights.weight_oi), .bias_o = copy(weights.bias_o)};
}

at::Tensor plus_bias(const at::Tensor& y, const LinearWeights& weights, std::int64_t expert) {
  return weights.bias_o.defined() ? y + weights.bias_o[expert] : y;
}

// Returns the experts of one token with Router::kSigmoid, found one after the other.
std::vector<std::int64_t> corrected_choice(const at::Tensor& scores_e, const at::Tensor& correction_e,
                                           const ExpertsConfig& config) {
  const std::int64_t of_group = config.num / config.num_groups;
  std::vector<double> choice(config.num);
  std::vector<std::pair<double, std::int64_t>> groups;
  for (std::int64_t e = 0; e < config.num; ++e) choice[e] = scores_e[e].item<double>() + correction_e[e].item<double>();
  for (std::int64_t group = 0; group < config.num_groups; ++group) {
    std::vector<double> own(choice.begin() + group * of_group, choice.begin() + (group + 1) * of_group);
    std::ranges::sort(own, std::greater{});
    groups.emplace_back(own[0] + own[1], group);
  }
  std::ranges::sort(groups, std::greater{});
  std::vector<std::pair<double, std::int64_t>> candidates;
  for (std::int64_t i = 0; i < config.groups_per_token; ++i) {
    for (std::int64_t e = groups[i].second * of_group; e < (groups[i].second + 1) * of_group; ++e)
      candidates.emplace_back(choice[e], e);
  }
  std::ranges::sort(candidates, std::greater{});
  std::vector<std::int64_t> experts;
  for (std::int64_t k = 0; k < config.per_token; ++k) experts.push_back(candidates[k].second);
  return experts;
}

struct PlainRouting {
  at::Tensor experts_nk, weights_nk;
};

PlainRouting plain_routing(const at::Tensor& logits, const ExpertWeights& weights, const ExpertsConfig& config) {
  if (config.router == ExpertsConfig::Router::kLargestFirst) {
    const auto [chosen, experts_nk] = logits.topk(config.per_token);
    return {experts_nk, chosen.softmax(-1)};
  }
  const bool is_sigmoid = config.router == ExpertsConfig::Router::kSigmoid;
  const at::Tensor scores = is_sigmoid ? logits.sigmoid() : logits.softmax(-1);
  at::Tensor experts_nk = std::get<1>(scores.topk(config.per_token));
  for (std::int64_t n = 0; is_sigmoid && n < logits.size(0); ++n)
    experts_nk[n].copy_(at::tensor(corrected_choice(scores[n], weights.correction_e, config)));
  const at::Tensor chosen = scores.gather(1, experts_nk);
  return {experts_nk, config.weight_scale * (config.normalises ? chosen / chosen.sum(-1, true) : chosen)};
}

// Computes the mixture token by token and expert by expert, with GPT-OSS's gated unit.
at::Tensor plain_mixture(const at::Tensor& x_nh, const ExpertWeights& weights, const ExpertsConfig& config) {
  at::Tensor logits = at::linear(x_nh, weights.router.weight_oi);
  if (weights.router.bias_o.defined()) logits = logits + weights.router.bias_o;
  const auto [experts_nk, weights_nk] = plain_routing(logits, weights, config);
  std::vector<at::Tensor> rows;
  for (std::int64_t n = 0; n < x_nh.size(0); ++n) {
    at::Tensor row = at::zeros({kHidden}, at::kDouble);
    for (std::int64_t k = 0; k < config.per_token; ++k) {
      const auto expert = experts_nk[n][k].item<std::int64_t>();
      const auto times = [&](const LinearWeights& w, const at::Tensor& v) {
        return plus_bias(at::mv(w.weight_oi[expert], v), w, expert);
      };
      const at::Tensor gate = times(weights.gate, x_nh[n]).clamp_max(7), up = times(weights.up, x_nh[n]).clamp(-7, 7);
      row = row + weights_nk[n][k] * times(weights.down, (up + 1) * gate * (1.702 * gate).sigmoid());
    }
    rows.push_back(row);
  }
  return at::stack(rows);
}

TEST(Experts, AreTheSumOverTheChosenOnesWithEveryGradient) {
  for (const auto& [dtype, tolerance] : {std::pair{at::kFloat, 5e-6}, std::pair{at::kHalf, 1e-2}}) {
    for (const bool has_bias : {false, true}) {
      for (const ExpertsConfig& config :
           {ExpertsConfig{.num = kNum, .per_token = 2, .router = ExpertsConfig::Router::kLargestFirst},
            ExpertsConfig{.num = kNum, .per_token = 3, .normalises = true}, ExpertsConfig{.num = kNum, .per_token = 1},
            ExpertsConfig{.num = kNum, .per_token = 2, .router = ExpertsConfig::Router::kSigmoid},
            ExpertsConfig{.num = kNum,
            .per_token = 3,
            .router = ExpertsConfig::Router::kSigmoid,
            .normalises = true,
            .num_groups = 3,
            .groups_per_token = 2,
            .weight_scale = 2.5}}) {
        at::manual_seed(7);
        const at::Tensor x = leaf({2, 9, kHidden}, dtype);
        ExpertWeights weights = random_weights(dtype, has_bias);
        weights.correction_e = at::randn({kNum});
        const ExpertWeights exact = {.router = in_fp64(weights.router),
                                     .correction_e = weights.correction_e,
                                     .gate = in_fp64(weights.gate),
                                     .up = in_fp64(weights.up),
                                     .down = in_fp64(weights.down)};
        const at::Tensor x64 = x.detach().to(at::kDouble).requires_grad_(true);
        RecomputeContext context;
        const RecomputeScope scope(context);
        const at::Tensor y = mixture_of_experts(x, x, weights, config, Activation::kClampedSwish, 0).y;
        const at::Tensor expected = plain_mixture(x64.flatten(0, 1), exact, config).view(x.sizes());
        EXPECT_LE(relative_difference(y.detach(), expected.detach()), tolerance);
        const at::Tensor grad = at::randn(y.sizes()).to(dtype);
        torch::autograd::backward({y}, {grad});
        torch::autograd::backward({expected}, {grad.to(at::kDouble)});
        EXPECT_LE(relative_difference(x.grad(), x64.grad()), tolerance);
        const std::vector<at::Tensor> ours = leaves_of(weights), theirs = leaves_of(exact);
        for (std::size_t i = 0; i < ours.size(); ++i) {
          if (!theirs[i].grad().defined()) continue;
          EXPECT_LE(relative_difference(ours[i].grad(), theirs[i].grad()), tolerance)
              << "parameter " << i << " of " << ours.size();
        }
      }
    }
  }
}

ExpertWeights sigmoid_weights(const ExpertsConfig& config, at::ScalarType dtype) {
  ExpertWeights weights = random_weights(dtype, false);
  weights.correction_e = at::randn({config.num}).requires_grad_(true);
  return weights;
}

// Returns how many tokens choose each expert, found one after the other.
at::Tensor loads_of(const at::Tensor& x, const ExpertWeights& weights, const ExpertsConfig& config) {
  const at::Tensor logits =
      at::linear(x.detach().flatten(0, -2).to(at::kFloat), weights.router.weight_oi.detach().to(at::kFloat));
  const at::Tensor experts_nk = plain_routing(logits, weights, config).experts_nk;
  at::Tensor loads_e = at::zeros({config.num});
  for (std::int64_t i = 0; i < experts_nk.numel(); ++i) loads_e[experts_nk.flatten()[i]] += 1;
  return loads_e;
}

constexpr ExpertsConfig kSigmoid{.num = kNum,
                                 .per_token = 3,
                                 .router = ExpertsConfig::Router::kSigmoid,
                                 .normalises = true,
                                 .num_groups = 3,
                                 .groups_per_token = 2};

TEST(Experts, TheGradientOfACorrectionIsTheLoadOfEachExpertAddedOverMicrobatches) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf}) {
    at::manual_seed(7);
    const ExpertWeights weights = sigmoid_weights(kSigmoid, dtype);
    at::Tensor loads_e = at::zeros({kNum});
    // Gradients of any size, also zeros, as if no token were trained, give the same loads.
    for (const double factor : {1.0, 1024.0, 0.0}) {
      const at::Tensor x = leaf({2, 9, kHidden}, dtype);
      RecomputeContext context;
      const RecomputeScope scope(context);
      const at::Tensor y = mixture_of_experts(x, x, weights, kSigmoid, Activation::kSilu, 0).y;
      torch::autograd::backward({y}, {at::full_like(y, factor)});
      loads_e += loads_of(x, weights, kSigmoid);
    }
    EXPECT_EQ(loads_e.sum().item<double>(), 3 * 18 * 3);
    EXPECT_TRUE(same_bits(weights.correction_e.grad(), loads_e)) << weights.correction_e.grad() << loads_e;
  }
}

TEST(Experts, ARecomputeCountsALoadOnceAndChoosesAsTheForwardPassDid) {
  at::manual_seed(7);
  ExpertWeights weights = sigmoid_weights(kSigmoid, at::kFloat);
  const at::Tensor x = leaf({9, kHidden});
  const at::Tensor loads_e = loads_of(x, weights, kSigmoid);
  RecomputeContext first, second;
  first.keeps = true;
  {
    const c10::NoGradGuard no_grad;
    const RecomputeScope scope(first);
    (void)mixture_of_experts(x, x, weights, kSigmoid, Activation::kSilu, 0);
  }
  EXPECT_FALSE(weights.correction_e.grad().defined());
  weights.correction_e.detach().copy_(at::randn({kNum}));  // with these, others would be chosen
  second.is_recompute = true;
  second.data = &first.saved;
  const RecomputeScope scope(second);
  torch::autograd::backward({mixture_of_experts(x, x, weights, kSigmoid, Activation::kSilu, 0).y.sum()});
  EXPECT_FALSE(at::equal(loads_e, loads_of(x, weights, kSigmoid)));
  EXPECT_TRUE(same_bits(weights.correction_e.grad(), loads_e));
}

TEST(Experts, LoadsAreCountedAlsoIfNothingElseOfTheLayerIsTrained) {
  at::manual_seed(7);
  const ExpertWeights weights = sigmoid_weights(kSigmoid, at::kFloat);
  for (const at::Tensor& each : leaves_of(weights)) at::Tensor(each).requires_grad_(false);
  const at::Tensor x = at::randn({9, kHidden});
  RecomputeContext context;
  const RecomputeScope scope(context);
  torch::autograd::backward({mixture_of_experts(x, x, weights, kSigmoid, Activation::kSilu, 0).y.sum()});
  EXPECT_TRUE(same_bits(weights.correction_e.grad(), loads_of(x, weights, kSigmoid)));
}

TEST(Experts, BiasesAddToTheLeafsOwnGradient) {
  at::manual_seed(7);
  const ExpertWeights weights = random_weights(at::kBFloat16, true);
  for (const at::Tensor& each : leaves_of(weights)) {
    each.set_grad_dtype(at::kFloat);
    each.mutable_grad() = at::ones(each.sizes());
  }
  const float* before = weights.gate.bias_o.grad().const_data_ptr<float>();
  RecomputeContext context;
  const RecomputeScope scope(context);
  const ExpertsConfig config{.num = kNum, .per_token = kNum, .router = ExpertsConfig::Router::kLargestFirst};
  const at::Tensor x = leaf({4, kHidden}, at::kBFloat16);
  torch::autograd::backward({mixture_of_experts(x, x, weights, config, Activation::kSilu, 0).y.sum()});
  EXPECT_EQ(weights.gate.bias_o.grad().const_data_ptr<float>(), before);
  // The gradient of the last product's results is the router's weights, whose sum is 1 for each of
  // the 4 tokens.
  EXPECT_LE(relative_difference(weights.down.bias_o.grad().sum(0), at::full({kHidden}, kNum + 4.0)), 1e-2);
}

// The tensors are rows, and probabilities of three experts.
TEST(ExpertBalance, IsASumOverLayersWhoseLossIsThatOfTransformers) {
  const at::Tensor first = at::tensor({0.5F, 0.25F, 0.25F, 0.1F, 0.8F, 0.1F}).view({2, 3}).requires_grad_(true);
  const at::Tensor second = at::tensor({0.2F, 0.2F, 0.6F, 0.3F, 0.3F, 0.4F}).view({2, 3}).requires_grad_(true);
  const ExpertBalance one = balance_of(first, at::tensor({1, 1, 0}, at::kLong)),
                      other = balance_of(second, at::tensor({0, 0, 2}, at::kLong));
  EXPECT_FALSE(sum_of({}, {}).is_defined());
  const ExpertBalance sum = sum_of(sum_of({}, one), other);
  EXPECT_TRUE(sum.counts.equal(at::tensor({1, 1, 2, 4, 3, 0}, at::kLong))) << sum.counts;
  const BalanceReport report = report_of(sum);
  // 3 * the sum of shares 1/4, 1/4, 2/4 times mean probabilities 1.1/4, 1.55/4, 1.35/4.
  EXPECT_FLOAT_EQ(report.auxiliary_loss.item<float>(), 3.0F * (1 * 1.1F + 1 * 1.55F + 2 * 1.35F) / 16);
  // With 4 choices by 2 routers over 3 experts, the mean load of an expert of one router is 2/3.
  // The highest loads are 1 and 2, so the result is their mean divided by 2/3.
  EXPECT_FLOAT_EQ(report.most_loaded.item<float>(), 3.0F / (4.0F / 3));
  EXPECT_EQ(report.least_loaded.item<float>(), 0);
  torch::autograd::backward({report.auxiliary_loss});
  EXPECT_LE(relative_difference(first.grad()[0], at::tensor({1.0F, 1.0F, 2.0F}) * (3.0F / 16)), 1e-6);
  EXPECT_TRUE(same_bits(second.grad(), first.grad()));
}

TEST(ExpertBalance, OfRoutersWithOtherNumbersOfExpertsIsRefused) {
  const ExpertBalance three = balance_of(at::ones({1, 3}), at::tensor({1, 0, 0}, at::kLong)),
                      two = balance_of(at::ones({1, 2}), at::tensor({1, 0}, at::kLong));
  EXPECT_THROW((void)sum_of(three, two), c10::Error);
}

}  // namespace
}  // namespace rp::models
