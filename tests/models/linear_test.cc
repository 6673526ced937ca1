// Tests products with weights on the code path of a GPU, which here runs on the CPU because it
// needs only LibTorch's products; and products on that of the CPU.
#include "models/layers/linear.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <array>

#include "tests/models/expected_values.h"
#include "tests/models/gpu_way.h"

namespace rp::models {
namespace {

TEST_F(GpuWay, GradientsAreAddedToTheLeafsInPlace) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = leaf({2, 7, 6}, dtype), weight = bound({5, 6}, dtype), bias = bound({5}, dtype);
    const at::Tensor in_place = weight.grad();
    const AutogradsShare of_weight(weight), of_bias(bias);
    const at::Tensor y = linear(x, LinearWeights{weight, bias}), grad_y = at::randn({2, 7, 5}).to(dtype);
    EXPECT_TRUE(same_bits(y.detach(), at::linear(x, weight, bias).detach()));
    torch::autograd::backward({y}, {grad_y});
    EXPECT_TRUE(weight.grad().is_alias_of(in_place));
    EXPECT_FALSE(of_weight.is_there());
    EXPECT_TRUE(of_bias.is_there());
    const at::Tensor rows = grad_y.view({14, 5}).to(at::kDouble);
    const double tolerance = dtype == at::kFloat ? 1e-6 : dtype == at::kHalf ? 1e-3 : 8e-3;
    EXPECT_LE(relative_difference(in_place, 1 + rows.t().mm(x.detach().view({14, 6}).to(at::kDouble))), tolerance);
    EXPECT_LE(relative_difference(bias.grad(), 1 + rows.sum(0)), 1e-6);
    EXPECT_LE(relative_difference(x.grad().view({14, 6}), rows.mm(weight.detach().to(at::kDouble))), tolerance);
    EXPECT_EQ(x.grad().scalar_type(), dtype);
  }
}

TEST_F(GpuWay, SeveralProductsOfOneXAddUpItsGradient) {
  const at::Tensor x = leaf({3, 4, 6}, at::kFloat);
  const at::Tensor a = bound({5, 6}, at::kFloat), b = bound({1, 6}, at::kFloat),
                   frozen = leaf({7, 6}, at::kFloat).detach();
  const std::vector<at::Tensor> ys = linears(x, {{a}, {b}, {frozen}});
  std::vector<at::Tensor> grads;
  at::Tensor expected = at::zeros({3, 4, 6}, at::kDouble);
  for (std::size_t i = 0; i < 3; ++i) {
    const at::Tensor& weight = (i == 0 ? a : i == 1 ? b : frozen);
    grads.push_back(at::randn(ys[i].sizes()));
    expected += grads[i].to(at::kDouble).matmul(weight.detach().to(at::kDouble));
  }
  torch::autograd::backward(ys, grads);
  EXPECT_LE(relative_difference(x.grad(), expected), 1e-6);
  const at::Tensor rows = x.detach().view({12, 6});
  EXPECT_LE(relative_difference(a.grad(), 1 + grads[0].view({12, 5}).t().mm(rows)), 1e-6);
  EXPECT_LE(relative_difference(b.grad(), 1 + grads[1].view({12, 1}).t().mm(rows)), 1e-6);
  EXPECT_FALSE(frozen.grad().defined());
}

TEST_F(GpuWay, EachBiasGetsTheGradientOfItsOwnProduct) {
  const at::Tensor x = leaf({3, 6}, at::kFloat), a = bound({5, 6}, at::kFloat), b = bound({1, 6}, at::kFloat),
                   c = bound({4, 6}, at::kFloat);
  const at::Tensor bias_b = bound({1}, at::kFloat), bias_c = bound({4}, at::kFloat);
  const std::vector<at::Tensor> ys = linears(x, {{a}, {b, bias_b}, {c, bias_c}});
  EXPECT_TRUE(same_bits(ys[0].detach(), at::linear(x, a).detach()));
  EXPECT_TRUE(same_bits(ys[1].detach(), at::linear(x, b, bias_b).detach()));
  EXPECT_TRUE(same_bits(ys[2].detach(), at::linear(x, c, bias_c).detach()));
  const std::vector<at::Tensor> grads = {at::randn({3, 5}), at::randn({3, 1}), at::randn({3, 4})};
  torch::autograd::backward(ys, grads);
  EXPECT_LE(relative_difference(bias_b.grad(), 1 + grads[1].sum(0)), 1e-6);
  EXPECT_LE(relative_difference(bias_c.grad(), 1 + grads[2].sum(0)), 1e-6);
  EXPECT_LE(relative_difference(c.grad(), 1 + grads[2].t().mm(x.detach())), 1e-6);
}

TEST_F(GpuWay, WhatIsNotAskedForOrNotUsedGetsNoGradient) {
  const at::Tensor x = leaf({4, 6}, at::kFloat).detach(), a = bound({5, 6}, at::kFloat), b = bound({5, 6}, at::kFloat);
  torch::autograd::backward({linears(x, {{a}, {b}})[1].sum()});
  EXPECT_TRUE(at::equal(a.grad(), at::ones({5, 6})));
  EXPECT_FALSE(at::equal(b.grad(), at::ones({5, 6})));
  EXPECT_FALSE(x.grad().defined());
}

// Counts the products that LibTorch computes.
class Products {
 public:
  Products()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
              const std::string name = function.name();
              if (name == "aten::mm" || name == "aten::addmm" || name == "aten::matmul") ++t_count;
              return nullptr;
            }))) {
    t_count = 0;
  }
  ~Products() { at::removeCallback(handle_); }
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;
  [[nodiscard]] int count() const { return t_count; }

 private:
  static inline thread_local int t_count = 0;
  at::CallbackHandle handle_;
};

// In a recompute only the graph matters.
void expect_gradients_of_an_unread_product(at::ScalarType dtype) {
  const at::Tensor x = leaf({2, 7, 6}, dtype), weight = bound({5, 6}, dtype), bias = bound({5}, dtype);
  const at::Tensor x2 = x.detach().clone().requires_grad_(true), weight2 = bound({5, 6}, dtype),
                   bias2 = bound({5}, dtype);
  weight2.set_data(weight.data());
  bias2.set_data(bias.data());
  const at::Tensor grad_y = at::randn({2, 7, 5}).to(dtype), read = linear(x2, LinearWeights{weight2, bias2});
  const Products products;
  const at::Tensor unread = linear(x, LinearWeights{weight, bias}, /*is_read=*/false);
  EXPECT_EQ(products.count(), 0);
  EXPECT_EQ(unread.sizes(), read.sizes());
  EXPECT_EQ(unread.scalar_type(), read.scalar_type());
  torch::autograd::backward({unread}, {grad_y});
  EXPECT_GT(products.count(), 0) << "else they are not counted";
  torch::autograd::backward({read}, {grad_y});
  EXPECT_TRUE(same_bits(x.grad(), x2.grad()));
  EXPECT_TRUE(same_bits(weight.grad(), weight2.grad()));
  EXPECT_TRUE(same_bits(bias.grad(), bias2.grad()));
}

TEST_F(GpuWay, AProductThatNothingReadsIsNotComputedButHasItsGradients) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    expect_gradients_of_an_unread_product(dtype);
}

TEST(Linear, AProductThatNothingReadsIsNotComputedButHasItsGradients) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) expect_gradients_of_an_unread_product(dtype);
}

TEST(Linear, AProductOfAFrozenWeightThatNothingReadsIsNotComputedEither) {
  const at::Tensor x = leaf({2, 7, 6}, at::kBFloat16), x2 = x.detach().clone().requires_grad_(true);
  const at::Tensor weight = leaf({5, 6}, at::kBFloat16).detach(), grad_y = at::randn({2, 7, 5}).to(at::kBFloat16);
  const Products products;
  const at::Tensor unread = linear(x, LinearWeights{weight}, /*is_read=*/false);
  EXPECT_EQ(products.count(), 0);
  torch::autograd::backward({unread, linear(x2, LinearWeights{weight})}, {grad_y, grad_y});
  EXPECT_TRUE(same_bits(x.grad(), x2.grad()));
}

// For example in training outside of the runtime, or if the weight is the sum of a base weight and
// an adapter.
TEST_F(GpuWay, AWeightWithoutAGradientOfItsOwnGetsAutograds) {
  const at::Tensor x = leaf({4, 6}, at::kFloat), plain = leaf({5, 6}, at::kFloat), base = leaf({5, 6}, at::kFloat);
  for (const int times : {1, 2}) {
    torch::autograd::backward({linear(x, LinearWeights{plain}).sum() + linear(x, LinearWeights{base * 2.0}).sum()});
    const at::Tensor rows = x.detach().sum(0).expand({5, 6}) * times;
    EXPECT_LE(relative_difference(plain.grad(), rows), 1e-6);  // the second time in place
    EXPECT_LE(relative_difference(base.grad(), 2 * rows), 1e-6);
  }
}

TEST(Linear, OnTheCpuIsLibTorchs) {
  const at::Tensor x = leaf({4, 6}, at::kFloat), weight = leaf({5, 6}, at::kFloat), bias = leaf({5}, at::kFloat);
  EXPECT_TRUE(same_bits(linear(x, LinearWeights{weight, bias}).detach(), at::linear(x, weight, bias).detach()));
}

class LinearOnTheCpu : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(5); }
  static double tolerance() { return GetParam() == at::kFloat ? 2e-6 : GetParam() == at::kHalf ? 1e-3 : 1.5e-2; }
};

TEST_P(LinearOnTheCpu, AgreesWithDoublePrecisionWithBiasAndWithout) {
  for (const bool with_bias : {true, false}) {
    std::vector<at::Tensor> leaves = {leaf({3, 7, 20}, GetParam()), leaf({11, 20}, GetParam())};
    if (with_bias) leaves.push_back(leaf({11}, GetParam()));
    std::vector<at::Tensor> copies;
    for (const at::Tensor& x : leaves) copies.push_back(x.detach().to(at::kDouble).requires_grad_(true));
    const at::Tensor y = linear(leaves[0], LinearWeights{leaves[1], with_bias ? leaves[2] : at::Tensor()});
    EXPECT_EQ(y.scalar_type(), GetParam());
    const at::Tensor expected =
        with_bias ? at::linear(copies[0], copies[1], copies[2]) : at::linear(copies[0], copies[1]);
    EXPECT_LE(relative_difference(y.detach(), expected.detach()), tolerance());
    const at::Tensor grad = at::randn(y.sizes()).to(GetParam());
    torch::autograd::backward({y}, {grad});
    torch::autograd::backward({expected}, {grad.to(at::kDouble)});
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      EXPECT_LE(relative_difference(leaves[i].grad(), copies[i].grad()), tolerance()) << "gradient of input " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, LinearOnTheCpu, testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

// The gradient is added in place, with the bits that autograd would produce.
TEST(Bf16OnTheCpu, AddsTheGradientOfAWeightToItsLeafAsAutogradWould) {
  at::manual_seed(5);
  for (const auto& [rows, in, out] :
       {std::array<std::int64_t, 3>{40, 8, 6}, {1, 8, 6}, {7, 1, 5}, {9, 33, 1}, {300, 96, 200}, {64, 576, 192}}) {
    for (const bool with_bias : {false, true}) {
      SCOPED_TRACE(testing::Message() << rows << " rows, " << in << " to " << out << ", bias " << with_bias);
      const at::Tensor x = leaf({1, rows, in}, at::kBFloat16), weight = bound({out, in}, at::kBFloat16),
                       bias = with_bias ? bound({out}, at::kBFloat16) : at::Tensor();
      const at::Tensor x2 = x.detach().clone().requires_grad_(true), weight2 = bound({out, in}, at::kBFloat16),
                       bias2 = with_bias ? bound({out}, at::kBFloat16) : at::Tensor();
      weight2.set_data(weight.data());
      if (with_bias) bias2.set_data(bias.data());
      const at::Tensor in_place = weight.grad();
      const AutogradsShare of_weight(weight);
      for (int microbatch = 0; microbatch < 2; ++microbatch) {
        const at::Tensor grad = at::randn({1, rows, out}).to(at::kBFloat16);
        const at::Tensor y = linear(x, LinearWeights{weight, bias});
        const at::Tensor y2 = with_bias ? at::linear(x2, weight2, bias2) : at::linear(x2, weight2);
        EXPECT_TRUE(same_bits(y.detach(), y2.detach()));
        torch::autograd::backward({y}, {grad});
        torch::autograd::backward({y2}, {grad});
      }
      EXPECT_TRUE(same_bits(x.grad(), x2.grad()));
      EXPECT_TRUE(same_bits(weight.grad(), weight2.grad()));
      EXPECT_TRUE(!with_bias || same_bits(bias.grad(), bias2.grad()));
      EXPECT_TRUE(weight.grad().is_alias_of(in_place));
      EXPECT_FALSE(of_weight.is_there());
    }
  }
}

TEST(Fp16OnTheCpu, LeavesTheGradientOfAWeightInFp32WhereItsLeafWantsThat) {
  at::manual_seed(5);
  const at::Tensor x = leaf({40, 8}, at::kHalf), weight = leaf({6, 8}, at::kHalf),
                   grad = at::randn({40, 6}).to(at::kHalf);
  weight.set_grad_dtype(at::kFloat);
  weight.mutable_grad() = at::zeros({6, 8});
  torch::autograd::backward({linear(x, LinearWeights{weight})}, {grad});
  EXPECT_LE(relative_difference(weight.grad(), at::mm(grad.to(at::kDouble).t(), x.detach().to(at::kDouble))), 1e-6);
}

TEST(Fp16OnTheCpu, AFrozenWeightGetsNoGradient) {
  const at::Tensor x = leaf({4, 8}, at::kHalf), weight = leaf({6, 8}, at::kHalf).detach();
  torch::autograd::backward({linear(x, LinearWeights{weight}).sum()});
  EXPECT_TRUE(x.grad().defined());
  EXPECT_FALSE(weight.grad().defined());
}

}  // namespace
}  // namespace rp::models
