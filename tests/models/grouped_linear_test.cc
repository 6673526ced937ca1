#include "models/grouped_linear.h"

#include <gtest/gtest.h>

#include "tests/models/bound_layers.h"
#include "tests/models/expected_values.h"
#include "tests/models/gpu_way.h"

namespace rp::models {
namespace {

class GroupedLinear : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(5); }
  static double tolerance() { return GetParam() == at::kFloat ? 2e-6 : GetParam() == at::kHalf ? 1e-3 : 1.5e-2; }
};

// Experts without rows at the beginning, in the middle and at the end; one with all.
const std::vector<std::int64_t> kCounts[] = {{0, 5, 0, 0, 11, 1, 0}, {17, 0, 0, 0, 0, 0, 0}, {3, 2, 4, 1, 2, 3, 2}};

TEST_P(GroupedLinear, IsEachRowTimesTheWeightOfItsExpertWithItsGradients) {
  for (const auto& counts : kCounts) {
    const at::Tensor x = leaf({17, 8}, GetParam()), weight = leaf({7, 6, 8}, GetParam());
    const at::Tensor rows = at::tensor(counts, at::kLong);
    const at::Tensor experts = at::repeat_interleave(at::arange(7, at::kLong), rows);
    const at::Tensor x64 = x.detach().to(at::kDouble).requires_grad_(true), w64 = weight.detach().to(at::kDouble).requires_grad_(true);
    const at::Tensor y = grouped_linear(x, weight, rows);
    EXPECT_EQ(y.scalar_type(), GetParam());
    const at::Tensor expected = at::einsum("nh,noh->no", {x64, w64.index_select(0, experts)});
    EXPECT_LE(relative_difference(y.detach(), expected.detach()), tolerance());
    const at::Tensor grad = at::randn(y.sizes()).to(GetParam());
    torch::autograd::backward({y}, {grad});
    torch::autograd::backward({expected}, {grad.to(at::kDouble)});
    EXPECT_LE(relative_difference(x.grad(), x64.grad()), tolerance());
    EXPECT_LE(relative_difference(weight.grad(), w64.grad()), tolerance());
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == 0) { EXPECT_TRUE(weight.grad()[static_cast<std::int64_t>(i)].eq(0).all().item<bool>()) << i; }
    }
  }
}

TEST_P(GroupedLinear, AddsTheGradientOfABoundWeightInPlaceWithAutogradsBits) {
  for (const auto& counts : kCounts) {
    const at::Tensor x = leaf({17, 8}, GetParam()), weight = bound({7, 6, 8}, GetParam()), rows = at::tensor(counts, at::kLong);
    const at::Tensor plain = weight.detach().clone().requires_grad_(true), in_place = weight.grad();
    plain.set_grad_dtype(at::kFloat);
    const AutogradsShare of_weight(weight), of_plain(plain);
    const at::Tensor grad = at::randn({17, 6}).to(GetParam());
    torch::autograd::backward({grouped_linear(x, weight, rows), grouped_linear(x, plain, rows)}, {grad, grad});
    EXPECT_TRUE(weight.grad().is_alias_of(in_place));
    EXPECT_FALSE(of_weight.is_there());
    EXPECT_TRUE(of_plain.is_there());
    EXPECT_TRUE(same_bits(in_place, 1 + plain.grad().to(at::kFloat)));
  }
}

TEST_P(GroupedLinear, OfAFrozenWeightMakesNoGradientForIt) {
  const at::Tensor x = leaf({4, 8}, GetParam()), weight = leaf({2, 6, 8}, GetParam()).detach();
  torch::autograd::backward({grouped_linear(x, weight, at::tensor({1, 3}, at::kLong)).sum()});
  EXPECT_TRUE(x.grad().defined());
}

TEST_P(GroupedLinear, WithoutAnyRowGivesNoneAndZeroGradients) {
  const at::Tensor x = leaf({0, 8}, GetParam()), weight = leaf({2, 6, 8}, GetParam());
  const at::Tensor y = grouped_linear(x, weight, at::zeros({2}, at::kLong));
  EXPECT_EQ(y.sizes(), (at::IntArrayRef{0, 6}));
  torch::autograd::backward({y.sum()});
  EXPECT_TRUE(weight.grad().eq(0).all().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GroupedLinear, testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(GroupedLinearNumbers, ThatDoNotAddUpToTheRowsAreRefused) {
  const at::Tensor x = leaf({4, 8}), weight = leaf({2, 6, 8});
  for (const std::vector<std::int64_t>& counts : {std::vector<std::int64_t>{1, 2}, {4, 1}, {-1, 5}}) {
    EXPECT_THROW((void)grouped_linear(x, weight, at::tensor(counts, at::kLong)), c10::Error);
  }
}

}  // namespace
}  // namespace rp::models
