#include <gtest/gtest.h>

#include "models/layers/delta_net/convolution.h"
#include "models/layers/delta_net/gated_norm.h"
#include "models/layers/delta_net/gates.h"
#include "tests/common/expect_refusal.h"
#include "tests/models/delta_cases.h"
#include "tests/models/expected_values.h"

namespace rp::models {
namespace {

using Leaves = std::vector<at::Tensor>;

// Returns x rounded to a dtype but stored as before. Its gradient is passed on unchanged.
at::Tensor rounded(const at::Tensor& x, at::ScalarType dtype) {
  return x + (x.detach().to(dtype).to(x.scalar_type()) - x.detach());
}

// Returns the results of an operation and the gradients of its leaves, for the given gradients of
// the results.
template <typename Run>
Leaves results_and_gradients(const Leaves& values, const Leaves& grads, const Run& run) {
  Leaves leaves;
  for (const at::Tensor& value : values) leaves.push_back(value.detach().clone().requires_grad_(true));
  const Leaves outputs = run(leaves);
  Leaves of_outputs, result;
  for (std::size_t i = 0; i < outputs.size(); ++i) of_outputs.push_back(grads[i].to(outputs[i].scalar_type()));
  torch::autograd::backward(outputs, of_outputs);
  for (const at::Tensor& output : outputs) result.push_back(output.detach());
  for (const at::Tensor& value : leaves) result.push_back(value.grad());
  return result;
}

Leaves as_doubles(const Leaves& values) {
  Leaves result;
  for (const at::Tensor& value : values) result.push_back(value.to(at::kDouble));
  return result;
}

// Returns which part of our values are the fp64 values, rounded once.
double share_of_rounded(const at::Tensor& ours, const at::Tensor& expected) {
  return ours.eq(expected.to(at::kFloat).to(ours.scalar_type())).to(at::kFloat).mean().item<double>();
}

// Expects that ours are the fp64 values, rounded once: almost all bits are the same, and the others
// are neighbours.
void expect_rounded(const at::Tensor& ours, const at::Tensor& expected, const char* name, double of_all = 0.98) {
  const double epsilon = ours.scalar_type() == at::kBFloat16 ? 1.6e-2 : ours.scalar_type() == at::kHalf ? 3e-3 : 4e-6;
  const at::Tensor wide = ours.to(at::kDouble), difference = (wide - expected).abs();
  const double largest = std::max(1e-30, expected.abs().max().item<double>());
  EXPECT_LE((difference - epsilon * expected.abs()).max().item<double>(), 2e-6 * largest) << name;
  if (ours.scalar_type() == at::kFloat) return;
  EXPECT_GE(share_of_rounded(ours, expected), of_all) << name;
}

// x before the start of a document is zero.
at::Tensor plain_convolution(const at::Tensor& y_btc, const at::Tensor& weight_cj, at::ScalarType dtype) {
  const std::int64_t taps = weight_cj.size(1), t = y_btc.size(1);
  const at::Tensor padded = at::constant_pad_nd(y_btc, {0, 0, taps - 1, 0});
  at::Tensor total = at::zeros_like(y_btc);
  for (std::int64_t j = 0; j < taps; ++j) total = total + padded.narrow(1, j, t) * weight_cj.select(1, j);
  return at::silu(rounded(total, dtype));
}

class DeltaOperators : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(8); }
  at::ScalarType dtype() const { return GetParam(); }
  at::Tensor normal(at::IntArrayRef shape) const { return at::randn(shape).to(dtype()); }
};

TEST_P(DeltaOperators, ConvolutionAgreesWithItsFormulaForEveryNumberOfTaps) {
  for (std::int64_t taps = 1; taps <= 9; ++taps) {
    for (const std::int64_t t : {1, 3, 150}) {
      for (const std::int64_t channels : {5, 300}) {
        SCOPED_TRACE(testing::Message() << taps << " taps, " << t << " tokens, " << channels << " channels");
        const Leaves values = {normal({2, t, channels}), normal({channels, taps})}, grad = {normal({2, t, channels})};
        const Leaves ours =
            results_and_gradients(values, grad, [](const Leaves& x) { return Leaves{causal_convolution(x[0], x[1])}; });
        const Leaves expected = results_and_gradients(as_doubles(values), as_doubles(grad), [&](const Leaves& x) {
          return Leaves{plain_convolution(x[0], x[1], dtype())};
        });
        expect_rounded(ours[0], expected[0], "x", 0.95);
        if (dtype() != at::kFloat && t > 3) {
          EXPECT_GE(share_of_rounded(ours[1], expected[1]), 0.95);
        }
        // A sum that rounds differently changes its gradient.
        const double tolerance = dtype() == at::kFloat ? 2e-5 : dtype() == at::kHalf ? 4e-3 : 3e-2;
        EXPECT_LE(relative_difference(ours[1], expected[1]), tolerance);
        EXPECT_LE(relative_difference(ours[2], expected[2]), tolerance / 2);
      }
    }
  }
}

// The formula in fp32 with LibTorch's operators, which adds in the same order.
TEST_P(DeltaOperators, ConvolutionRoundsItsSumBeforeSilu) {
  const at::Tensor y = normal({2, 100, 64}), weight = normal({64, 4});
  const at::Tensor wide_y = y.to(at::kFloat), wide_weight = weight.to(at::kFloat);
  const at::Tensor twice = plain_convolution(wide_y, wide_weight, dtype()).to(dtype());
  const at::Tensor once = plain_convolution(wide_y, wide_weight, at::kFloat).to(dtype());
  const auto share = [&](const at::Tensor& x) {
    return causal_convolution(y, weight).eq(x).to(at::kFloat).mean().item<float>();
  };
  if (dtype() == at::kFloat) return;
  EXPECT_GT(share(twice), 0.995F);
  EXPECT_LT(share(once), 0.9F);
}

TEST_P(DeltaOperators, ConvolutionStopsAtTheStartOfEachDocument) {
  const std::vector<std::int64_t> lengths = {1, 1, 2, 3, 4, 5, 64, 1, 39};  // 120 tokens
  for (const std::int64_t taps : {1, 2, 4, 8}) {
    const Leaves values = {normal({2, 120, 20}), normal({20, taps})}, grad = {normal({2, 120, 20})};
    const auto convolution = [](const at::Tensor& documents) {
      return [documents](const Leaves& x) { return Leaves{causal_convolution(x[0], x[1], documents)}; };
    };
    const at::Tensor documents = at::tensor(lengths, at::kLong).expand({2, -1}).contiguous();
    const Leaves packed = results_and_gradients(values, grad, convolution(documents));
    std::int64_t first = 0;
    at::Tensor grad_weight = at::zeros({20, taps});
    for (const std::int64_t length : lengths) {
      const auto part = [&](const at::Tensor& x) { return x.narrow(1, first, length); };
      const Leaves alone = results_and_gradients({part(values[0]), values[1]}, {part(grad[0])}, convolution({}));
      EXPECT_TRUE(same_bits(part(packed[0]), alone[0])) << taps << " taps, document at " << first;
      EXPECT_TRUE(same_bits(part(packed[1]), alone[1])) << taps << " taps, document at " << first;
      grad_weight += alone[2].to(at::kFloat);
      first += length;
    }
    EXPECT_LE(relative_difference(packed[2], grad_weight), dtype() == at::kFloat ? 1e-6 : 2e-2);
  }
}

TEST_P(DeltaOperators, GradientsOfWeightsAreFp32) {
  const at::Tensor x = normal({1, 90, 20}), grad = normal({1, 90, 20});
  // Returns the gradient of a parameter for which the runtime wants fp32 gradients.
  const auto gradient_of = [&](const at::Tensor& value, const auto& operation) {
    const at::Tensor weight = value.clone().requires_grad_(true);
    weight.set_grad_dtype(at::kFloat);
    const at::Tensor y = operation(weight);
    torch::autograd::backward({y}, {grad.to(y.scalar_type())});
    return weight.grad();
  };
  const auto gates = [&](const at::Tensor& weight) { return gate_and_beta(x, x, weight, weight).decay_bth; };
  const auto norm = [&](const at::Tensor& weight) { return gated_rms_norm(x, x, weight, 1e-6); };
  const auto convolution = [&](const at::Tensor& weight) { return causal_convolution(x, weight); };
  const at::Tensor vector = normal({20}), taps = normal({20, 1, 4});
  EXPECT_TRUE(same_bits(gradient_of(vector, gates), gradient_of(vector.to(at::kFloat), gates)));
  EXPECT_TRUE(same_bits(gradient_of(taps, convolution), gradient_of(taps.to(at::kFloat), convolution)));
  EXPECT_TRUE(same_bits(gradient_of(taps, convolution).squeeze(1), gradient_of(taps.squeeze(1), convolution)));
  EXPECT_EQ(gradient_of(vector, norm).scalar_type(), at::kFloat);
}

TEST_P(DeltaOperators, GatesAgreeWithTheirFormula) {
  // Values of a from -80 to 100, some near the threshold of softplus, where it jumps by 2e-9.
  const at::Tensor a = at::cat({at::linspace(-80, 100, 900), at::linspace(19.5, 20.5, 60)}).view({2, 80, 6});
  const Leaves values = {a.to(dtype()), (normal({2, 80, 6}) * 4).to(dtype()), normal({6}), normal({6})};
  const Leaves grads = {at::randn({2, 80, 6}), normal({2, 80, 6})};
  const Leaves ours = results_and_gradients(values, grads, [](const Leaves& x) {
    const DecayAndBeta gates = gate_and_beta(x[0], x[1], x[2], x[3]);
    return Leaves{gates.decay_bth, gates.beta_bth};
  });
  const Leaves expected = results_and_gradients(as_doubles(values), as_doubles(grads), [](const Leaves& x) {
    return Leaves{-x[2].exp() * at::softplus(x[0] + x[3]), at::sigmoid(x[1])};
  });
  ASSERT_EQ(ours[0].scalar_type(), at::kFloat);
  ASSERT_EQ(ours[1].scalar_type(), dtype());
  // Small decays, too, are exact.
  const at::Tensor ratio = (ours[0].to(at::kDouble) - expected[0]).abs() / (expected[0].abs() + 1e-30);
  EXPECT_LE(ratio.max().item<double>(), 5e-6);
  constexpr const char* kNames[] = {"decay", "beta", "a", "b", "a_log", "dt_bias"};
  for (std::size_t i = 1; i < 4; ++i) expect_rounded(ours[i], expected[i], kNames[i]);
  for (std::size_t i = 4; i < 6; ++i) {
    EXPECT_LE(relative_difference(ours[i], expected[i]), dtype() == at::kFloat ? 5e-6 : 8e-3) << kNames[i];
  }
}

TEST_P(DeltaOperators, GatesTakeWeightsInFp32) {
  const at::Tensor a = normal({1, 5, 4}), b = normal({1, 5, 4}), a_log = at::randn({4}), dt_bias = at::randn({4});
  const at::Tensor expected = -a_log.exp() * at::softplus(a.to(at::kFloat) + dt_bias);
  EXPECT_LE(relative_difference(gate_and_beta(a, b, a_log, dt_bias).decay_bth, expected), 1e-6);
}

at::Tensor plain_norm(const Leaves& x, at::ScalarType dtype, at::ScalarType between) {
  const at::Tensor normal = x[0] * at::rsqrt(x[0].square().mean(-1, true) + 1e-5);
  return rounded(x[2] * rounded(normal, dtype), between) * at::silu(x[1]);
}

TEST_P(DeltaOperators, GatedNormAgreesWithItsFormula) {
  for (const std::int64_t e : {5, 48, 128}) {
    SCOPED_TRACE(e);
    const Leaves values = {normal({2, 70, 3, e}), normal({2, 70, 3, e}), normal({e})}, grad = {normal({2, 70, 3, e})};
    const Leaves ours = results_and_gradients(
        values, grad, [](const Leaves& x) { return Leaves{gated_rms_norm(x[0], x[1], x[2], 1e-5)}; });
    const Leaves expected = results_and_gradients(
        as_doubles(values), as_doubles(grad), [&](const Leaves& x) { return Leaves{plain_norm(x, dtype(), dtype())}; });
    constexpr const char* kNames[] = {"y", "o", "z"};
    for (std::size_t i = 0; i < 3; ++i) expect_rounded(ours[i], expected[i], kNames[i], 0.97);
    EXPECT_LE(relative_difference(ours[3], expected[3]), dtype() == at::kFloat ? 5e-6 : 8e-3);
    if (dtype() == at::kFloat) continue;
    const Leaves floats = {values[0].to(at::kFloat), values[1].to(at::kFloat), values[2].to(at::kFloat)};
    const auto share = [&](at::ScalarType first, at::ScalarType between) {
      return ours[0].eq(plain_norm(floats, first, between).to(dtype())).to(at::kFloat).mean().item<float>();
    };
    EXPECT_GT(share(dtype(), dtype()), 0.99F);
    EXPECT_LT(share(dtype(), at::kFloat), 0.9F);
    EXPECT_LT(share(at::kFloat, dtype()), 0.9F);
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, DeltaOperators, testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

// Runs all three operators on `rows` rows, and returns everything that belongs to single rows, then
// the gradients of weights.
Leaves all_operators(const Leaves& values, const Leaves& grads) {
  return results_and_gradients(values, grads, [](const Leaves& x) {
    const DecayAndBeta gates = gate_and_beta(x[0], x[1], x[4], x[5]);
    const at::Tensor convolved = causal_convolution(x[2], x[6]);
    return Leaves{gates.decay_bth, gates.beta_bth, convolved, gated_rms_norm(convolved, x[3], x[7], 1e-6)};
  });
}

TEST(DeltaOperatorBits, DependNeitherOnThreadsNorOnOtherRows) {
  at::manual_seed(9);
  const auto random = [](at::IntArrayRef shape) { return at::randn(shape).to(at::kBFloat16); };
  const Leaves values = {random({3, 200, 32}), random({3, 200, 32}), random({3, 200, 700}), random({3, 200, 700}),
                         random({32}),         random({32}),         random({700, 4}),      random({700})};
  const Leaves grads = {at::randn({3, 200, 32}), random({3, 200, 32}), random({3, 200, 700}), random({3, 200, 700})};
  const Leaves one = with_threads(1, [&] { return all_operators(values, grads); });
  for (const int threads : {2, 3, 8}) {
    const Leaves several = with_threads(threads, [&] { return all_operators(values, grads); });
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(same_bits(several[i], one[i])) << threads << ", " << i;
  }
  for (std::int64_t row = 0; row < 3; ++row) {
    Leaves of_row = values, grads_of_row;
    for (std::size_t i = 0; i < 4; ++i) of_row[i] = values[i].narrow(0, row, 1);
    for (const at::Tensor& grad : grads) grads_of_row.push_back(grad.narrow(0, row, 1));
    const Leaves alone = all_operators(of_row, grads_of_row);
    for (std::size_t i = 0; i < 8; ++i) {
      EXPECT_TRUE(same_bits(alone[i], one[i].narrow(0, row, 1))) << "row " << row << ", " << i;
    }
  }
}

TEST(DeltaOperatorChecks, OtherDevicesAndWrongShapesAreRefusedByName) {
  const at::Tensor x = at::randn({1, 4, 6}), weight = at::randn({6});
  const at::Tensor there = x.to(at::kMeta);
  const auto refuses = [](const char* what, const auto& action) {
    EXPECT_THAT(error_of(action), testing::HasSubstr(what));
  };
  refuses("causal_convolution: computes on the CPU or a GPU, not on meta", [&] {
    (void)causal_convolution(there, at::randn({6, 4}));
  });
  refuses("causal_convolution: computes on the CPU or a GPU", [&] { (void)causal_convolution(x, there[0].t()); });
  refuses("gate_and_beta: computes on the CPU or a GPU, not on meta",
          [&] { (void)gate_and_beta(x, there, weight, weight); });
  refuses("gated_rms_norm: computes on the CPU or a GPU, not on meta",
          [&] { (void)gated_rms_norm(there, x, weight, 1e-6); });
  refuses("causal_convolution: y [1, 4, 6] and weight [5, 4]", [&] { (void)causal_convolution(x, at::randn({5, 4})); });
  refuses("causal_convolution: supports 1 to 16 taps, not 17", [&] {
    (void)causal_convolution(x, at::randn({6, 17}));
  });
  refuses("gate_and_beta", [&] { (void)gate_and_beta(x, x.narrow(1, 0, 3), weight, weight); });
  refuses("gate_and_beta: a_log and dt_bias", [&] { (void)gate_and_beta(x, x, weight.narrow(0, 0, 5), weight); });
  refuses("gated_rms_norm: o", [&] { (void)gated_rms_norm(x, x, weight.narrow(0, 0, 5), 1e-6); });
  refuses("gated_rms_norm: needs one dtype", [&] { (void)gated_rms_norm(x, x, weight.to(at::kHalf), 1e-6); });
  refuses("bf16, fp16 or fp32", [&] { (void)causal_convolution(x.to(at::kDouble), at::randn({6, 4})); });
}

}  // namespace
}  // namespace rp::models
