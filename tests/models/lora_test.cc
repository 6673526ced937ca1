// Compares products of frozen weights with pairs, several of one x at once, with the formula in
// fp64.
#include "models/layers/lora.h"

#include <gtest/gtest.h>

#include "tests/models/bound_layers.h"
#include "tests/models/expected_values.h"
#include "tests/models/gpu_way.h"

namespace rp::models {
namespace {

constexpr double kScale = 1.5;

LinearWeights with_pair(std::int64_t out, std::int64_t in, at::ScalarType dtype) {
  return {.weight_oi = leaf({out, in}, dtype).detach(),
          .lora = {.a_ri = bound({3, in}, dtype), .b_or = bound({out, 3}, dtype), .scale = kScale}};
}

// Three products: with a pair, without a pair, and with a pair and a trained bias.
std::vector<LinearWeights> three(at::ScalarType dtype) {
  std::vector<LinearWeights> weights = {
      with_pair(5, 8, dtype), {.weight_oi = leaf({4, 8}, dtype).detach()}, with_pair(6, 8, dtype)};
  weights[2].bias_o = bound({6}, dtype);
  return weights;
}

at::Tensor wide(const at::Tensor& tensor) { return tensor.detach().to(at::kDouble); }

class AdaptedLinears : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(7); }
  static double tolerance() { return GetParam() == at::kFloat ? 2e-6 : 1.5e-2; }
};

TEST_P(AdaptedLinears, AreTheProductsWithWeightsAndPairsWithTheirGradients) {
  const at::Tensor x = leaf({2, 7, 8}, GetParam());
  const std::vector<LinearWeights> weights = three(GetParam());
  ASSERT_TRUE(takes_adapted_linears(x, weights));
  const std::vector<at::Tensor> ys = linears(x, weights);
  const at::Tensor x_ni = wide(x).view({14, 8});
  at::Tensor grad_ni = at::zeros({14, 8}, at::kDouble);
  std::vector<at::Tensor> grads;
  for (std::size_t i = 0; i < ys.size(); ++i) {
    const LinearWeights& one = weights[i];
    grads.push_back(at::randn(ys[i].sizes()).to(GetParam()));
    at::Tensor sum_oi = wide(one.weight_oi);
    if (one.lora.a_ri.defined()) sum_oi = sum_oi + kScale * wide(one.lora.b_or).mm(wide(one.lora.a_ri));
    const at::Tensor expected =
        x_ni.mm(sum_oi.t()) + (one.bias_o.defined() ? wide(one.bias_o) : at::zeros({}, at::kDouble));
    EXPECT_LE(relative_difference(ys[i].detach().view(expected.sizes()), expected), tolerance()) << i;
    EXPECT_EQ(ys[i].scalar_type(), GetParam());
    grad_ni += wide(grads[i]).view({14, -1}).mm(sum_oi);
  }
  torch::autograd::backward(ys, grads);
  EXPECT_LE(relative_difference(x.grad().view({14, 8}), grad_ni), tolerance());
  for (const std::size_t i : {0, 2}) {  // gradients are added to ones
    const LoraPair& pair = weights[i].lora;
    const at::Tensor grad_no = wide(grads[i]).view({14, -1});
    EXPECT_LE(relative_difference(pair.a_ri.grad(), 1 + kScale * wide(pair.b_or).t().mm(grad_no.t()).mm(x_ni)),
              tolerance())
        << i;
    EXPECT_LE(relative_difference(pair.b_or.grad(), 1 + kScale * grad_no.t().mm(x_ni).mm(wide(pair.a_ri).t())),
              tolerance())
        << i;
  }
  EXPECT_LE(relative_difference(weights[2].bias_o.grad(), 1 + wide(grads[2]).view({14, 6}).sum(0)), tolerance());
}

TEST_P(AdaptedLinears, ThatNothingReadsOrUsesHaveTheGradientsOfTheOthers) {
  const at::Tensor x = leaf({7, 8}, GetParam()), grad = at::randn({7, 6}).to(GetParam());
  const std::vector<LinearWeights> weights = three(GetParam());
  torch::autograd::backward({linears(x, weights)[2]}, {grad});
  const at::Tensor of_x = x.grad().clone(), of_a = weights[2].lora.a_ri.grad().clone(),
                   of_b = weights[2].lora.b_or.grad().clone();
  x.mutable_grad() = at::Tensor();
  for (const LinearWeights& one : {weights[0], weights[2]}) {
    one.lora.a_ri.grad().fill_(1);
    one.lora.b_or.grad().fill_(1);
  }
  torch::autograd::backward({linears(x, weights, /*is_read=*/false)[2]}, {grad});
  EXPECT_TRUE(same_bits(x.grad(), of_x));
  EXPECT_TRUE(same_bits(weights[2].lora.a_ri.grad(), of_a));
  EXPECT_TRUE(same_bits(weights[2].lora.b_or.grad(), of_b));
  EXPECT_TRUE(weights[0].lora.a_ri.grad().eq(1).all().item<bool>());
  EXPECT_TRUE(weights[0].lora.b_or.grad().eq(1).all().item<bool>());
}

TEST_P(AdaptedLinears, BelowWhichNothingIsTrainedMakeNoGradientOfX) {
  const at::Tensor x = leaf({7, 8}, GetParam()).detach();
  const std::vector<LinearWeights> weights = three(GetParam());
  torch::autograd::backward({linears(x, weights)[0].sum()});
  EXPECT_FALSE(x.grad().defined());
  EXPECT_FALSE(weights[0].lora.b_or.grad().eq(1).all().item<bool>());
}

// The gradient of the lengths needs the values of the product.
TEST(Dora, WhatNothingReadsHasTheGradientsOfTheOthers) {
  GpuKernels table;
  table.takes_cpu_memory = true;
  for (const bool on_gpu : {false, true}) {
    set_gpu_kernels(on_gpu ? &table : nullptr);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      std::vector<at::Tensor> gradients;
      for (const bool is_read : {true, false}) {
        at::manual_seed(7);
        LinearWeights weights = with_pair(5, 8, dtype);
        weights.lora.magnitude_o = bound({5}, dtype);
        // Memory that the product gets if it is not computed.
        { const at::Tensor garbage = at::full({2, 7, 5}, 1e4, dtype); }
        const at::Tensor x = leaf({2, 7, 8}, dtype);
        torch::autograd::backward({linear(x, weights, is_read)}, {at::ones({2, 7, 5}, dtype)});
        gradients.push_back(weights.lora.magnitude_o.grad());
      }
      EXPECT_TRUE(same_bits(gradients[0], gradients[1])) << dtype << (on_gpu ? " as on a GPU" : "");
    }
    set_gpu_kernels(nullptr);
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, AdaptedLinears, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(AdaptedLinearsOf, DoraDropoutTrainedWeightsAndFp16AreNotTaken) {
  const at::Tensor x = leaf({7, 8});
  const LinearWeights plain = with_pair(5, 8, at::kFloat);
  EXPECT_TRUE(takes_adapted_linears(x, {plain}));
  LinearWeights other = plain;
  other.lora.magnitude_o = bound({5}, at::kFloat);
  EXPECT_FALSE(takes_adapted_linears(x, {plain, other}));
  other = plain;
  other.lora.dropout = 0.1;
  EXPECT_FALSE(takes_adapted_linears(x, {plain, other}));
  EXPECT_FALSE(takes_adapted_linears(x, {plain, {.weight_oi = leaf({5, 8})}}));
  EXPECT_FALSE(takes_adapted_linears(x, {LinearWeights{.weight_oi = leaf({5, 8}).detach()}}));
  EXPECT_FALSE(takes_adapted_linears(leaf({7, 8}, at::kHalf), {with_pair(5, 8, at::kHalf)}));
}

}  // namespace
}  // namespace rp::models
