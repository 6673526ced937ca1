#include "models/layers/ops.h"

#include <gtest/gtest.h>

#include "models/layers/embedding.h"
#include "models/layers/kernel_call.h"
#include "roundpipe/error.h"
#include "tests/models/expected_values.h"

namespace rp::models {
namespace {

at::Tensor copy_of(const at::Tensor& tensor) { return tensor.detach().to(at::kFloat).clone().requires_grad_(true); }

// Runs our operation and an fp32 composition of LibTorch's operators on equal leaves with equal
// output gradients, and compares outputs and all gradients.
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
  double tolerance() const { return dtype() == at::kFloat ? 2e-6 : dtype() == at::kHalf ? 3e-3 : 2e-2; }
};

TEST_P(Ops, RmsNormAgreesWithItsFormula) {
  for (const std::int64_t hidden : {5, 32, 72}) {
    expect_agreement(
        {leaf({3, 50, hidden}, dtype()), leaf({hidden}, dtype())}, tolerance(),
        [](const auto& in) { return rms_norm(in[0], in[1], 1e-5); },
        [](const auto& in) { return in[1] * (in[0] * at::rsqrt(in[0].pow(2).mean(-1, true) + 1e-5)); });
  }
}

TEST_P(Ops, OtherKindsOfNormsAgreeWithTheirFormulas) {
  for (const NormKind kind : {NormKind::kUnrounded, NormKind::kOffset}) {
    const double offset = kind == NormKind::kOffset ? 1 : 0;
    expect_agreement(
        {leaf({3, 50, 72}, dtype()), leaf({72}, dtype())}, tolerance(),
        [&](const auto& in) { return rms_norm(in[0], in[1], 1e-5, kind); },
        [&](const auto& in) { return (in[1] + offset) * (in[0] * at::rsqrt(in[0].pow(2).mean(-1, true) + 1e-5)); });
    expect_agreement(
        {leaf({3, 50, 72}, dtype()), leaf({3, 50, 72}, dtype()), leaf({72}, dtype())}, tolerance(),
        [&](const auto& in) { return add_rms_norm(in[0], in[1], in[2], 1e-5, kind).y; },
        [&](const auto& in) {
          const at::Tensor sum = in[0] + in[1];
          return (in[2] + offset) * (sum * at::rsqrt(sum.pow(2).mean(-1, true) + 1e-5));
        });
  }
}

// In bf16 the result is the product of unrounded values, rounded once.
TEST(Norms, AnUnroundedNormIsRoundedOnce) {
  at::manual_seed(3);
  const at::Tensor x = at::randn({40, 72}).to(at::kBFloat16), weight = at::randn({72}).to(at::kBFloat16);
  const at::Tensor wide = x.to(at::kFloat), normal = wide * at::rsqrt(wide.pow(2).mean(-1, true) + 1e-5);
  const at::Tensor once = (weight.to(at::kFloat) * normal).to(at::kBFloat16), twice = weight * normal.to(at::kBFloat16);
  EXPECT_GT(rms_norm(x, weight, 1e-5, NormKind::kUnrounded).eq(once).to(at::kFloat).mean().item<float>(), 0.99F);
  EXPECT_GT(rms_norm(x, weight, 1e-5).eq(twice).to(at::kFloat).mean().item<float>(), 0.99F);
  EXPECT_LT(once.eq(twice).to(at::kFloat).mean().item<float>(), 0.95F);
}

// Runs `norm` on leaves {x, residual, weight}. Returns its two outputs and, after a backward pass
// through both, the gradients.
template <typename Norm>
std::vector<at::Tensor> outputs_and_gradients(const std::vector<at::Tensor>& values, const Norm& norm) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& value : values) leaves.push_back(value.detach().clone().requires_grad_(true));
  const NormalisedSum result = norm(leaves[0], leaves[1], leaves[2]);
  const at::Tensor grads = at::linspace(-1, 1, 2 * result.y.numel()).to(result.y.scalar_type());
  const auto grad = [&](std::int64_t i) {
    return grads.narrow(0, i * result.y.numel(), result.y.numel()).view(result.y.sizes());
  };
  torch::autograd::backward({result.sum, result.y}, {grad(0), grad(1)});
  return {result.sum.detach(), result.y.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

TEST_P(Ops, AddRmsNormHasTheBitsOfAnAdditionAndANorm) {
  for (const std::int64_t hidden : {5, 32, 72}) {
    const std::vector<at::Tensor> values = {leaf({3, 50, hidden}, dtype()), leaf({3, 50, hidden}, dtype()),
                                            leaf({hidden}, dtype())};
    const auto fused = outputs_and_gradients(values, [](const auto& x, const auto& residual, const auto& weight) {
      return add_rms_norm(x, residual, weight, 1e-5);
    });
    const auto composed = outputs_and_gradients(values, [](const auto& x, const auto& residual, const auto& weight) {
      const at::Tensor sum = x + residual;
      return NormalisedSum{sum, rms_norm(sum, weight, 1e-5)};
    });
    for (std::size_t i = 0; i < fused.size(); ++i)
      EXPECT_TRUE(same_bits(fused[i], composed[i])) << hidden << ", value " << i;
  }
}

TEST_P(Ops, AddRmsNormOfWhichOneOutputIsUsedGivesItsGradientOnly) {
  const at::Tensor x = leaf({4, 6}, dtype()), residual = leaf({4, 6}, dtype()), weight = leaf({6}, dtype());
  const at::Tensor grad = at::randn({4, 6}).to(dtype());
  torch::autograd::backward({add_rms_norm(x, residual, weight, 1e-5).sum}, {grad});
  EXPECT_TRUE(same_bits(x.grad(), grad));
  EXPECT_TRUE(same_bits(residual.grad(), grad));
  EXPECT_FALSE(weight.grad().defined());
  const at::Tensor sum = (x.detach() + residual.detach()).requires_grad_(true);
  x.mutable_grad() = residual.mutable_grad() = at::Tensor();
  torch::autograd::backward({add_rms_norm(x, residual, weight, 1e-5).y}, {grad});
  torch::autograd::backward({rms_norm(sum, weight.detach().requires_grad_(true), 1e-5)}, {grad});
  EXPECT_TRUE(same_bits(x.grad(), sum.grad()));
  EXPECT_TRUE(same_bits(residual.grad(), sum.grad()));
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
    expect_agreement(
        {leaf({2, 7, 3, size}, dtype())}, tolerance(), [&](const auto& in) { return rotate_heads(in[0], table); },
        theirs);
  }
}

TEST_P(Ops, RotationOfAPartOfAHeadLeavesTheRestUnchanged) {
  const at::Tensor angles = at::rand({7, 5}) * 6.0, x = leaf({2, 7, 3, 33}, dtype());
  const RotaryTable table{angles.cos(), angles.sin()};
  const at::Tensor y = rotate_heads(x, table), part = rotate_heads(x.detach().slice(-1, 0, 10), table);
  EXPECT_TRUE(same_bits(y.detach(), at::cat({part, x.detach().slice(-1, 10)}, -1)));
  const at::Tensor grad = at::randn({2, 7, 3, 33}).to(dtype());
  torch::autograd::backward({y}, {grad});
  const RotaryTable back{table.cosine_tr2, -table.sine_tr2};
  const at::Tensor grad_part = rotate_heads(grad.slice(-1, 0, 10), back);
  EXPECT_TRUE(same_bits(x.grad(), at::cat({grad_part, grad.slice(-1, 10)}, -1)));
  EXPECT_THROW((void)rotate_heads(x.slice(-1, 0, 8), table), c10::Error);
}

TEST_P(Ops, GluAgreesWithSiluTimesUp) {
  expect_agreement(
      {leaf({3, 11, 13}, dtype()), leaf({3, 11, 13}, dtype())}, tolerance(),
      [](const auto& in) { return glu(in[0], in[1]); }, [](const auto& in) { return at::silu(in[0]) * in[1]; });
}

TEST_P(Ops, OtherActivationsAgreeWithTheirFormulas) {
  const auto leaves = [&] { return std::vector<at::Tensor>{leaf({3, 11, 13}, dtype()), leaf({3, 11, 13}, dtype())}; };
  expect_agreement(
      leaves(), tolerance(), [](const auto& in) { return glu(in[0], in[1], Activation::kGeluTanh); },
      [](const auto& in) { return at::gelu(in[0], "tanh") * in[1]; });
  expect_agreement(
      leaves(), tolerance(), [](const auto& in) { return glu(in[0], in[1], Activation::kSigmoid); },
      [](const auto& in) { return at::sigmoid(in[0]) * in[1]; });
  // Some values are outside the limits.
  std::vector<at::Tensor> wide;
  for (const at::Tensor& x : leaves()) wide.push_back((x.detach() * 6).requires_grad_(true));
  expect_agreement(
      wide, tolerance(), [](const auto& in) { return glu(in[0], in[1], Activation::kClampedSwish); },
      [](const auto& in) {
        const at::Tensor gate = in[0].clamp_max(7), up = in[1].clamp(-7, 7);
        return gate * at::sigmoid(gate * 1.702) * (up + 1);
      });
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

INSTANTIATE_TEST_SUITE_P(Dtypes, Ops, testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(Ops, RefuseFp64AndSayWhatIsTaken) {
  try {
    (void)glu(leaf({2, 8}, at::kDouble), leaf({2, 8}, at::kDouble));
    FAIL() << "no exception";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("bf16, fp16 or fp32"), std::string::npos) << error.what();
  }
}

TEST(GpuKernels, WithoutThePlugInAreAskedForWithAnErrorThatSaysWhatToDo) {
  EXPECT_FALSE(gpu_kernels_take_cpu_memory());
  try {
    (void)gpu_kernels();
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kNoResource);
    EXPECT_NE(std::string(error.what()).find("--gpus"), std::string::npos) << error.what();
  }
}

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
