#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "models/layers/causal_lm_loss.h"
#include "roundpipe/error.h"
#include "tests/models/expected_values.h"

namespace rp::models {
namespace {

LossCase make_case(std::int64_t batch, std::int64_t length, std::int64_t hidden, std::int64_t vocabulary,
                   at::ScalarType dtype = at::kFloat) {
  at::manual_seed(11);
  return {at::randn({batch, length, hidden}).to(dtype).requires_grad_(true),
          at::randn({vocabulary, hidden}).to(dtype).requires_grad_(true),
          at::randint(vocabulary, {batch, length}, at::kLong)};
}

void expect_plain_values(const LossCase& c, double divisor, double tolerance, double factor = 1,
                         std::int64_t chunk_tokens = kChunkTokens) {
  const at::Tensor loss = our_loss(c, divisor, chunk_tokens);
  torch::autograd::backward({factor == 1 ? loss : loss * factor});
  const std::vector<at::Tensor> expected = plain_loss(c, divisor, factor);
  EXPECT_LE(relative_difference(loss.detach(), expected[0]), tolerance);
  EXPECT_LE(relative_difference(c.hidden_bth.grad(), expected[1]), tolerance);
  EXPECT_LE(relative_difference(c.weight_vh.grad(), expected[2]), tolerance);
}

TEST(CausalLmLoss, AgreesWithWholeLogitsWhenSomeTokensAreNotTrained) {
  const LossCase c = make_case(3, 17, 24, 101);
  c.labels_bt.narrow(1, 3, 6).fill_(-100);
  c.labels_bt[2].fill_(-100);
  expect_plain_values(c, 29, 2e-6);
}

TEST(CausalLmLoss, AgreesWithWholeLogitsAtEveryBorderOfAChunk) {
  for (const std::int64_t tokens : {1, 7, 8, 9, 15, 16, 17, 30}) {
    expect_plain_values(make_case(1, tokens, 12, 101), static_cast<double>(tokens), 3e-6, 1, /*chunk_tokens=*/8);
  }
}

TEST(CausalLmLoss, AnyNumberOfTrainedTokensAgreesWhateverItIsFilledUpTo) {
  for (const std::int64_t chunk_tokens : {64, 100, 512}) {
    for (const std::int64_t trained : {1, 63, 64, 65, 99, 100, 101, 128, 129}) {
      const LossCase c = make_case(2, 70, 12, 101);
      c.labels_bt.view({-1}).narrow(0, std::min<std::int64_t>(trained, 5), 140 - trained).fill_(-100);
      expect_plain_values(c, static_cast<double>(trained), 3e-6, 1, chunk_tokens);
    }
  }
}

TEST(CausalLmLoss, TrainedTokensThatFillAChunkExactlyAgreeToo) {
  const LossCase c = make_case(1, 20, 12, 101);
  c.labels_bt.narrow(1, 3, 4).fill_(-100);  // 16 are left, which are two whole chunks
  expect_plain_values(c, 16, 3e-6, 1, 8);
}

TEST(CausalLmLoss, ChunksInBf16AddTheWeightsGradientInFp32) {
  expect_plain_values(make_case(1, 64, 32, 300, at::kBFloat16), 64, 3e-2, 1, 4);
}

TEST(CausalLmLoss, Bf16LogitsStayNearFp64) { expect_plain_values(make_case(2, 40, 32, 300, at::kBFloat16), 80, 3e-2); }

TEST(CausalLmLoss, Fp16IsComputedInFp32AndRoundedOnce) {
  expect_plain_values(make_case(2, 40, 32, 300, at::kHalf), 80, 1e-3);
  expect_plain_values(make_case(1, 64, 32, 300, at::kHalf), 64, 1e-3, 1, 4);
}

// A probability divided by the divisor is 0 in fp16, so the loss scale must be applied before
// rounding.
TEST(CausalLmLoss, Fp16GradientsOfManyTokensKeepTheirSmallProbabilities) {
  const LossCase c = make_case(3, 17, 24, 101, at::kHalf);
  c.hidden_bth.detach().mul_(0.01);  // all tokens are almost equally probable: 1 / 101 / 65536
  expect_plain_values(c, 65536, 1e-3, 65536);
}

TEST(CausalLmLoss, GradientFromBehindTheLossIsMultipliedIn) {
  expect_plain_values(make_case(2, 5, 8, 30), 10, 2e-6, -2.5);
}

// Compares numbers and gradients with these settings with those from complete logits.
void expect_settings(const LossCase& c, const CausalLmLossSettings& settings, double tolerance,
                     std::int64_t chunk_tokens) {
  const Tensors losses =
      causal_lm_loss_of({c.hidden_bth, c.weight_vh}, {c.labels_bt, at::scalar_tensor(29.0)}, settings, chunk_tokens);
  at::Tensor sum = losses[0];
  for (std::size_t i = 1; i < losses.size(); ++i) sum = sum + losses[i];
  torch::autograd::backward({sum});
  const std::vector<at::Tensor> expected = plain_loss(c, 29, 1, settings);
  EXPECT_LE(relative_difference(losses[0].detach(), expected[0]), tolerance);
  EXPECT_LE(relative_difference(c.hidden_bth.grad(), expected[1]), tolerance);
  EXPECT_LE(relative_difference(c.weight_vh.grad(), expected[2]), tolerance);
  ASSERT_EQ(losses.size(), settings.z_loss > 0 ? 2U : 1U);
  if (settings.z_loss > 0) {
    EXPECT_LE(relative_difference(losses[1], expected[3]), tolerance);
  }
}

TEST(CausalLmLoss, ZLossAndCappedLogitsAgreeWithWholeLogits) {
  for (const std::int64_t chunk_tokens : {8, 512}) {
    for (const CausalLmLossSettings& settings :
         {CausalLmLossSettings{.z_loss = 0.1}, CausalLmLossSettings{.logit_softcap = 3},
          CausalLmLossSettings{.logit_softcap = 3, .z_loss = 0.1}}) {
      for (const auto& [dtype, tolerance] :
           {std::pair{at::kFloat, 5e-6}, std::pair{at::kHalf, 2e-3}, std::pair{at::kBFloat16, 3e-2}}) {
        const LossCase c = make_case(3, 17, 24, 101, dtype);
        c.labels_bt.narrow(1, 3, 6).fill_(-100);
        expect_settings(c, settings, tolerance, chunk_tokens);
      }
    }
  }
}

TEST(CausalLmLoss, SettingsAreInItsName) {
  EXPECT_EQ(causal_lm_loss().name, "causal_lm_loss");
  EXPECT_EQ(causal_lm_loss({.logit_softcap = 30, .z_loss = 1e-5, .balance = 0.001}).name,
            "causal_lm_loss logit_softcap=30; z_loss=1e-05; balance=0.001;");
}

// The inputs are what layers with experts return: two experts, 6 rows in all layers, 3 layers.
TEST(CausalLmLoss, OfExpertsReportsTheirBalanceByTheShareOfTrainedTokens) {
  const LossCase c = make_case(1, 4, 8, 30);
  const at::Tensor probabilities = at::tensor({4.0F, 2.0F}).requires_grad_(true),
                   counts = at::tensor({5, 1, 6, 5, 1}, at::kLong);
  const Tensors losses = causal_lm_loss_of({c.hidden_bth, c.weight_vh, probabilities, counts},
                                           {c.labels_bt, at::scalar_tensor(16.0)}, {.z_loss = 0.1, .balance = 0.5});
  const CausalLmLosses named =
      causal_lm_losses({losses[0].item<double>(), losses[1].item<double>(), losses[2].item<double>(),
                        losses[3].item<double>(), losses[4].item<double>()},
                       {.z_loss = 0.1, .balance = 0.5});
  ASSERT_TRUE(named.experts && named.z_loss);
  EXPECT_FLOAT_EQ(static_cast<float>(named.experts->auxiliary_loss), 0.5F * 0.25F * 2 * (5 * 4 + 1 * 2) / 36);
  EXPECT_FLOAT_EQ(static_cast<float>(named.experts->most_loaded), 0.25F * 5 / 3);
  EXPECT_FLOAT_EQ(static_cast<float>(named.experts->least_loaded), 0.25F / 3);
  torch::autograd::backward({losses[2]});
  EXPECT_LE(relative_difference(probabilities.grad(), at::tensor({5.0F, 1.0F}) * (0.5F * 0.25F * 2 / 36)), 1e-6);
  // The auxiliary loss is not trained: it is reported as 0, and has no gradient.
  const Tensors untrained =
      causal_lm_loss_of({c.hidden_bth, c.weight_vh, probabilities, counts}, {c.labels_bt, at::scalar_tensor(16.0)});
  ASSERT_EQ(untrained.size(), 4U);
  EXPECT_EQ(untrained[1].item<float>(), 0);
  EXPECT_FALSE(untrained[1].requires_grad());
}

TEST(CausalLmLoss, MicrobatchWithoutTrainedTokensHasZeroLossAndZeroGradients) {
  const LossCase c = make_case(2, 5, 8, 30);
  c.labels_bt.fill_(-100);
  const at::Tensor loss = our_loss(c, 10);
  EXPECT_EQ(loss.item<float>(), 0.0F);
  torch::autograd::backward({loss});
  EXPECT_TRUE(same_bits(c.hidden_bth.grad(), at::zeros({2, 5, 8})));
  if (c.weight_vh.grad().defined()) {
    EXPECT_TRUE(same_bits(c.weight_vh.grad(), at::zeros({30, 8})));
  }
}

TEST(CausalLmLoss, SumOverMicrobatchesIsTheLossOfTheBatch) {
  const LossCase c = make_case(4, 9, 8, 30);
  double parts = 0;
  for (int i = 0; i < 4; ++i) {
    const LossCase part{c.hidden_bth.narrow(0, i, 1), c.weight_vh, c.labels_bt.narrow(0, i, 1)};
    parts += our_loss(part, 36).item<double>();
  }
  EXPECT_NEAR(parts, our_loss(c, 36).item<double>(), 1e-6);
}

TEST(CausalLmLoss, WithoutGradientsItOnlyEvaluates) {
  const LossCase c = make_case(2, 5, 8, 30);
  const at::Tensor with = our_loss(c, 10).detach();
  const c10::NoGradGuard no_grad;
  const at::Tensor without = our_loss(c, 10);
  EXPECT_FALSE(without.requires_grad());
  EXPECT_TRUE(same_bits(with, without));
}

void expect_refusal(const LossCase& c, double divisor, const std::string& text) {
  try {
    (void)our_loss(c, divisor);
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TEST(CausalLmLoss, RefusesLabelsOutsideTheVocabularyAndADivisorOfZero) {
  LossCase c = make_case(2, 5, 8, 30);
  expect_refusal(c, 0, "divisor is 0");
  c.labels_bt[1][2] = 30;
  expect_refusal(c, 10, "label 30");
  c.labels_bt[1][2] = -1;
  expect_refusal(c, 10, "label -1");
}

}  // namespace
}  // namespace rp::models
