// Compares the operators of linear attention on the code path of a GPU, with the kernels emulated on
// the CPU, with the loops for the CPU.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>

#include "kernels/cuda/kernels.h"
#include "models/layers/delta_net/convolution.h"
#include "models/layers/delta_net/gated_norm.h"
#include "models/layers/delta_net/gates.h"
#include "tests/models/delta_cases.h"
#include "tests/models/expected_values.h"
#include "tests/models/gpu_way.h"

namespace rp::models {
namespace {

struct Precision {
  at::ScalarType dtype;
  double tolerance;
};

constexpr Precision kPrecisions[] = {{at::kFloat, 1e-5}, {at::kBFloat16, 1e-2}, {at::kHalf, 2e-3}};

class DeltaOnGpuWay : public testing::Test {
 protected:
  DeltaOnGpuWay() {
    table_.takes_cpu_memory = true;
    table_.current_stream = []() -> void* { return nullptr; };
    at::manual_seed(9);
  }
  ~DeltaOnGpuWay() override { set_gpu_kernels(nullptr); }

  // Calls `run` on leaves with these values in both ways, and compares outputs and gradients.
  template <typename Run>
  void expect_the_cpus_values(const std::vector<at::Tensor>& values, double tolerance, const Run& run) {
    std::vector<std::vector<at::Tensor>> results;
    for (const bool on_gpu : {false, true}) {
      set_gpu_kernels(on_gpu ? &table_ : nullptr);
      std::vector<at::Tensor> leaves;
      for (const at::Tensor& value : values) leaves.push_back(value.detach().clone().requires_grad_(true));
      const std::vector<at::Tensor> outputs = run(leaves);
      std::vector<at::Tensor> grads;
      for (const at::Tensor& output : outputs) {
        grads.push_back(
            (at::arange(output.numel(), at::kFloat) * 0.7).sin().view(output.sizes()).to(output.scalar_type()));
      }
      torch::autograd::backward(outputs, grads);
      std::vector<at::Tensor>& result = results.emplace_back();
      for (const at::Tensor& output : outputs) result.push_back(output.detach());
      for (const at::Tensor& leaf : leaves) result.push_back(leaf.grad());
    }
    for (std::size_t i = 0; i < results[0].size(); ++i) {
      EXPECT_EQ(results[1][i].scalar_type(), results[0][i].scalar_type()) << "value " << i;
      EXPECT_LE(relative_difference(results[1][i], results[0][i]), tolerance) << "value " << i;
    }
  }

  // Compares the rule with its recurrence in fp64.
  void expect_recurrence(const DeltaCase& c, const at::Tensor& documents_bk = {}) {
    set_gpu_kernels(&table_);
    const std::vector<at::Tensor> actual = our_rule(c, documents_bk), expected = expected_rule(c, documents_bk);
    for (std::size_t i = 0; i < actual.size(); ++i) {
      EXPECT_LE(relative_difference(actual[i], expected[i]), 1e-5) << "value " << i;
    }
  }

  GpuKernels table_ = cuda::kernel_table();
};

using Leaves = std::vector<at::Tensor>;

const at::Tensor kNoDocuments{};

at::Tensor documents_of(std::initializer_list<std::int64_t> lengths, std::int64_t rows) {
  return at::tensor(lengths, at::kLong).view({rows, -1});
}

TEST_F(DeltaOnGpuWay, TheRuleGivesTheCpusValues) {
  for (const auto& [dtype, tolerance] : kPrecisions) {
    for (const std::int64_t t : {1, 2, 63, 64, 65, 200}) {
      const DeltaCase c = make_delta_case({.b = 2, .t = t, .k = 2, .d = 8, .h = 4, .e = 5}, dtype);
      expect_the_cpus_values({c.inputs.begin(), c.inputs.end()}, tolerance, [](const auto& in) {
        return Leaves{gated_delta_rule({in[0], in[1], in[2], in[3], in[4]})};
      });
    }
  }
}

TEST_F(DeltaOnGpuWay, TheRuleAgreesWithItsRecurrence) {
  for (const std::int64_t t : {1, 64, 130, 333}) expect_recurrence(make_delta_case({.b = 2, .t = t, .h = 2}));
  DeltaCase c = make_delta_case({.b = 2, .t = 300, .k = 2, .d = 16, .h = 2, .e = 16});
  const at::Tensor choice = at::rand(c.inputs[3].sizes());
  c.inputs[3].masked_fill_(choice.lt(0.3), -60.0F);
  expect_recurrence(c);
  c.inputs[3].masked_fill_(choice.lt(0.1), -1e4F);
  expect_recurrence(c);
  c.inputs[3].masked_fill_(choice.lt(0.05), -std::numeric_limits<float>::infinity());
  set_gpu_kernels(&table_);
  for (const at::Tensor& value : our_rule(c)) EXPECT_TRUE(value.isfinite().all().item<bool>());
  DeltaCase equal = make_delta_case({.b = 2, .t = 300, .k = 2, .d = 16, .h = 2, .e = 16});
  equal.inputs[1] = at::randn({1, 1, 1, 16}) + at::randn(equal.inputs[1].sizes()) * 1e-3;
  expect_recurrence(equal);
}

TEST_F(DeltaOnGpuWay, TheRuleStartsWithoutAStateAtEachDocument) {
  for (const at::Tensor& documents :
       {documents_of({64, 64, 65, 1, 1, 127}, 2), documents_of({63, 2, 0, 130, 64, 6}, 2), documents_of({200, 199}, 2),
        documents_of({1, 1, 1, 62, 1, 100, 31, 97, 1, 0, 0, 0}, 2)}) {
    expect_recurrence(make_delta_case({.b = 2, .t = 200, .k = 1, .d = 8, .h = 3, .e = 8}), documents);
  }
}

TEST_F(DeltaOnGpuWay, TheRuleTakesPartsOfAWiderTensorAndNeedsNoStatesWithoutAGradient) {
  const DeltaCase c = make_delta_case({.b = 2, .t = 70, .k = 2, .d = 8, .h = 4, .e = 5});
  set_gpu_kernels(&table_);
  const std::vector<at::Tensor> expected = our_rule(c);
  const at::Tensor joined =
      at::cat({c.inputs[0].flatten(2), c.inputs[1].flatten(2), c.inputs[2].flatten(2)}, 2).requires_grad_(true);
  const auto rule = [&](const at::Tensor& x) {
    const std::vector<at::Tensor> parts = x.split_with_sizes({16, 16, 20}, 2);
    return gated_delta_rule({parts[0].unflatten(2, {2, 8}), parts[1].unflatten(2, {2, 8}),
                             parts[2].unflatten(2, {4, 5}), c.inputs[3], c.inputs[4]});
  };
  const at::Tensor o = rule(joined);
  torch::autograd::backward({o}, {c.grad_o});
  EXPECT_TRUE(same_bits(o.detach(), expected[0]));
  EXPECT_TRUE(
      same_bits(joined.grad(), at::cat({expected[1].flatten(2), expected[2].flatten(2), expected[3].flatten(2)}, 2)));
  EXPECT_TRUE(same_bits(rule(joined.detach()), expected[0]));
  // Sequences that do not follow each other at the tokens' stride are copied.
  EXPECT_TRUE(same_bits(rule(at::cat({joined.detach(), joined.detach()}, 1).narrow(1, 0, 70)), expected[0]));
}

TEST_F(DeltaOnGpuWay, TheConvolutionGivesTheCpusValues) {
  for (const auto& [dtype, tolerance] : kPrecisions) {
    for (const std::int64_t taps : {1, 2, 4}) {
      for (const at::Tensor& documents : {kNoDocuments, documents_of({1, 2, 3, 10, 3, 1}, 2)}) {
        expect_the_cpus_values(
            {at::randn({2, 14, 9}).to(dtype), at::randn({9, taps}).to(dtype)}, tolerance,
            [&](const auto& in) { return std::vector<at::Tensor>{causal_convolution(in[0], in[1], documents)}; });
      }
    }
    expect_the_cpus_values({at::randn({2, 3, 9}).to(dtype), at::randn({9, 1, 5}).to(dtype)}, tolerance,
                           [&](const auto& in) { return std::vector<at::Tensor>{causal_convolution(in[0], in[1])}; });
  }
}

TEST_F(DeltaOnGpuWay, TheGatesGiveTheCpusValues) {
  for (const auto& [dtype, tolerance] : kPrecisions) {
    const std::vector<at::Tensor> values = {(at::randn({2, 70, 3}) * 15).to(dtype), at::randn({2, 70, 3}).to(dtype),
                                            at::randn({3}).to(dtype), at::randn({3}).to(dtype)};
    expect_the_cpus_values(values, tolerance, [](const auto& in) {
      const DecayAndBeta rates = gate_and_beta(in[0], in[1], in[2], in[3]);
      return std::vector<at::Tensor>{rates.decay_bth, rates.beta_bth};
    });
  }
}

TEST_F(DeltaOnGpuWay, TheGatedNormGivesTheCpusValues) {
  for (const auto& [dtype, tolerance] : kPrecisions) {
    const std::vector<at::Tensor> values = {at::randn({2, 30, 3, 8}).to(dtype), at::randn({2, 30, 3, 8}).to(dtype),
                                            at::randn({8}).to(dtype)};
    expect_the_cpus_values(values, tolerance, [](const auto& in) {
      return std::vector<at::Tensor>{gated_rms_norm(in[0], in[1], in[2], 1e-6)};
    });
  }
}

}  // namespace
}  // namespace rp::models
