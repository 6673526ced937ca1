#include "models/ops.h"

#include <gtest/gtest.h>

#include "roundpipe/error.h"
#include "tests/models/golden.h"

namespace rp::models {
namespace {

at::Tensor leaf(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  return at::randn(shape, at::kFloat).to(dtype).requires_grad_(true);
}

at::Tensor copy_of(const at::Tensor& tensor) { return tensor.detach().to(at::kFloat).clone().requires_grad_(true); }

// Runs ours and an fp32 composition of LibTorch's operators on equal leaves with equal output gradients, and compares
// outputs and all gradients.
template <typename Ours, typename Theirs>
void expect_agreement(const std::vector<at::Tensor>& leaves, double tolerance, const Ours& ours, const Theirs& theirs) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& x : leaves) copies.push_back(copy_of(x));
  const at::Tensor y = ours(leaves);
  const at::Tensor expected = theirs(copies);
  EXPECT_LE(relative_difference(y, expected), tolerance);
  const at::Tensor grad = at::randn(y.sizes());
  torch::autograd::backward({y}, {grad.to(y.scalar_type())});
  torch::autograd::backward({expected}, {grad});
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    EXPECT_LE(relative_difference(leaves[i].grad(), copies[i].grad()), tolerance) << "gradient of input " << i;
  }
}

class Ops : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(3); }
  at::ScalarType dtype() const { return GetParam(); }
  double tolerance() const { return dtype() == at::kFloat ? 2e-6 : 2e-2; }
};

TEST_P(Ops, RmsNormAgreesWithItsFormula) {
  for (const std::int64_t hidden : {5, 32, 72}) {
    expect_agreement(
        {leaf({3, 50, hidden}, dtype()), leaf({hidden}, dtype())}, tolerance(),
        [](const auto& in) { return rms_norm(in[0], in[1], 1e-5); },
        [](const auto& in) { return in[1] * (in[0] * at::rsqrt(in[0].pow(2).mean(-1, true) + 1e-5)); });
  }
}

TEST_P(Ops, RotationAgreesWithRotateHalf) {
  for (const std::int64_t size : {6, 32, 40}) {
    const at::Tensor angles = at::rand({7, size / 2}) * 6.0;
    const RotaryTable table{angles.cos(), angles.sin()};
    const auto theirs = [&](const auto& in) {
      const at::Tensor& x = in[0];
      const at::Tensor half = at::cat({-x.slice(-1, size / 2), x.slice(-1, 0, size / 2)}, -1);
      const at::Tensor both = at::cat({angles, angles}, -1).unsqueeze(1);
      return x * both.cos() + half * both.sin();
    };
    expect_agreement({leaf({2, 7, 3, size}, dtype())}, tolerance(),
                     [&](const auto& in) { return rotate_heads(in[0], table); }, theirs);
  }
}

TEST_P(Ops, SwigluAgreesWithSiluTimesUp) {
  expect_agreement({leaf({3, 11, 13}, dtype()), leaf({3, 11, 13}, dtype())}, tolerance(),
                   [](const auto& in) { return swiglu(in[0], in[1]); },
                   [](const auto& in) { return at::silu(in[0]) * in[1]; });
}

TEST_P(Ops, EmbeddingAddsTheGradientsOfATokenThatOccursOften) {
  const at::Tensor ids = at::tensor({4, 1, 4, 4, 0, 1}, at::kLong).view({2, 3});
  const at::Tensor weight = leaf({6, 5}, dtype());
  weight.set_grad_dtype(at::kFloat);
  weight.mutable_grad() = at::ones({6, 5});
  const at::Tensor y = embed(weight, ids);
  EXPECT_TRUE(same_bits(y.detach(), weight.detach().index_select(0, ids.view({-1})).view({2, 3, 5})));
  const at::Tensor grad = at::randn({2, 3, 5}).to(dtype());
  torch::autograd::backward({y}, {grad});
  const at::Tensor expected = at::ones({6, 5}).index_add(0, ids.view({-1}), grad.to(at::kFloat).view({6, 5}));
  EXPECT_LE(relative_difference(weight.grad(), expected), 1e-6);
}

TEST_P(Ops, EmbeddingGivesThePaddingTokenNoGradient) {
  const at::Tensor ids = at::tensor({4, 1, 4, 2, 0, 1}, at::kLong).view({2, 3});
  const at::Tensor weight = leaf({6, 5}, dtype());
  const at::Tensor plain = weight.detach().clone().requires_grad_(true);
  weight.set_grad_dtype(at::kFloat);
  weight.mutable_grad() = at::zeros({6, 5});
  const at::Tensor grad = at::randn({2, 3, 5}).to(dtype());
  torch::autograd::backward({embed(weight, ids, 4)}, {grad});
  torch::autograd::backward({at::embedding(plain, ids, 4)}, {grad});
  EXPECT_LE(relative_difference(weight.grad(), plain.grad().to(at::kFloat)), tolerance());
  EXPECT_EQ(weight.grad()[4].abs().sum().item<float>(), 0);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Ops, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(Embedding, RefusesATokenOutsideTheVocabularyByNumber) {
  const at::Tensor weight = leaf({6, 5});
  try {
    (void)embed(weight, at::tensor({1, 6}, at::kLong).view({1, 2}));
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("token id 6"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace rp::models
