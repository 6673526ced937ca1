#include "models/layers/grouped_linear.h"

#include <gtest/gtest.h>

#include <limits>

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

// Experts without rows at the beginning, in the middle and at the end; and one expert with all
// rows.
const std::vector<std::int64_t> kCounts[] = {{0, 5, 0, 0, 11, 1, 0}, {17, 0, 0, 0, 0, 0, 0}, {3, 2, 4, 1, 2, 3, 2}};

TEST_P(GroupedLinear, IsEachRowTimesTheWeightOfItsExpertWithItsGradients) {
  for (const auto& counts : kCounts) {
    const at::Tensor x = leaf({17, 8}, GetParam()), weight = leaf({7, 6, 8}, GetParam());
    const at::Tensor rows = at::tensor(counts, at::kLong);
    const at::Tensor experts = at::repeat_interleave(at::arange(7, at::kLong), rows);
    const at::Tensor x64 = x.detach().to(at::kDouble).requires_grad_(true),
                     w64 = weight.detach().to(at::kDouble).requires_grad_(true);
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
      if (counts[i] == 0) {
        EXPECT_TRUE(weight.grad()[static_cast<std::int64_t>(i)].eq(0).all().item<bool>()) << i;
      }
    }
  }
}

TEST_P(GroupedLinear, AddsTheGradientOfABoundWeightInPlaceWithAutogradsBits) {
  for (const auto& counts : kCounts) {
    const at::Tensor x = leaf({17, 8}, GetParam()), weight = bound({7, 6, 8}, GetParam()),
                     rows = at::tensor(counts, at::kLong);
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

// Products of bf16 have padded numbers of rows. The rows of an expert must not depend on those of
// the others.
TEST_P(GroupedLinear, KeepsTheRowsOfAnExpertApartFromItsNeighbours) {
  const std::vector<std::int64_t> counts = {40, 0, 3, 33, 32, 20};
  const at::Tensor weight = bound({6, 24, 16}, GetParam()), x = leaf({128, 16}, GetParam()),
                   grad = at::randn({128, 24}).to(GetParam());
  torch::autograd::backward({grouped_linear(x, weight, at::tensor(counts, at::kLong))}, {grad});
  const at::Tensor of_weight = weight.grad().clone(),
                   y = grouped_linear(x.detach(), weight.detach(), at::tensor(counts, at::kLong));
  std::int64_t first = 0;
  for (std::size_t i = 0; i < counts.size(); first += counts[i++]) {
    const at::Tensor expert = weight.detach()[static_cast<std::int64_t>(i)].to(at::kDouble);
    const at::Tensor x_nh = x.detach().narrow(0, first, counts[i]).to(at::kDouble),
                     grad_no = grad.narrow(0, first, counts[i]).to(at::kDouble);
    if (counts[i] == 0) continue;
    EXPECT_LE(relative_difference(y.narrow(0, first, counts[i]), x_nh.mm(expert.t())), tolerance()) << i;
    EXPECT_LE(relative_difference(x.grad().narrow(0, first, counts[i]), grad_no.mm(expert)), tolerance()) << i;
    EXPECT_LE(relative_difference(of_weight[static_cast<std::int64_t>(i)], 1 + grad_no.t().mm(x_nh)), tolerance()) << i;
    // The numbers of other experts have no influence, whatever they are.
    at::Tensor others = at::full_like(x.detach(), std::numeric_limits<double>::quiet_NaN());
    others.narrow(0, first, counts[i]).copy_(x.detach().narrow(0, first, counts[i]));
    const at::Tensor alone = grouped_linear(others, weight.detach(), at::tensor(counts, at::kLong));
    EXPECT_TRUE(same_bits(alone.narrow(0, first, counts[i]), y.narrow(0, first, counts[i]))) << i;
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
