// The user's own torch::nn modules as layers: random numbers, buffers, mistakes.
#include "roundpipe/module.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "roundpipe/error.h"
#include "tests/pipeline/tiny_run.h"

namespace rp::test {
namespace {

using models::same_bits;

struct Noisy : torch::nn::Module {
  explicit Noisy(int size) : linear(register_module("linear", torch::nn::Linear(size, size))) {}
  at::Tensor forward(at::Tensor x) { return x + at::dropout(linear(x), 0.5, true); }
  torch::nn::Linear linear;
};

struct Counting : torch::nn::Module {
  Counting() : count(register_buffer("count", at::zeros({1}))), weight(register_parameter("weight", at::ones({4}))) {}
  at::Tensor forward(at::Tensor x) {
    count += 1;
    return x * weight;
  }
  at::Tensor count, weight;
};

struct Wide : torch::nn::Module {
  explicit Wide(const char* what) : what(what), weight(register_parameter("weight", at::ones({4}))) {}
  at::Tensor forward(at::Tensor x) {
    if (what == "complex") return at::complex(x * weight, x);
    if (what == "shapes") return at::matmul(x, at::ones({5, 5}));
    if (what == "int") throw 42;
    return x * weight;
  }
  std::string what;
  at::Tensor weight;
};

at::Tensor mean_square(at::Tensor output, at::Tensor label) { return (output - label).square().sum() / 100; }

struct Result {
  std::vector<double> losses;
  std::vector<at::Tensor> masters;
};

Result train(const Model& model, const std::string& plan, std::uint64_t seed) {
  at::set_num_threads(1);
  const ScratchDirectory scratch;
  std::ofstream(scratch.path() / "plan") << plan << "\n";
  SessionOptions options;
  options.plan = (scratch.path() / "plan").string();
  Session session(0, nullptr, options);
  Pipeline pipeline(session, model, loss("mean square", mean_square), {.num_microbatches = 3, .seed = seed});
  session.start();
  Result result;
  auto random = at::make_generator<at::CPUGeneratorImpl>(3);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = at::randn({7, 4}, random);
    result.losses.push_back(pipeline.forward_backward(x, x.flip(1)).loss());
    pipeline.step({.learning_rate = 0.1});
  }
  pipeline.synchronize();
  for (const ParameterState& parameter : pipeline.parameters()) result.masters.push_back(parameter.master.clone());
  return result;
}

// One plan keeps the forward's graph, the other recomputes it: equal weights only if both drew the same masks.
TEST(ModuleLayer, DropoutDrawsTheSameInRecomputeAndInAnyPlan) {
  const Model model{layer<Noisy>(4), layer<Noisy>(4), layer<Noisy>(4)};
  const Result expected = train(model, "fused 0-2", 1);
  for (const char* plan : {"forward 0-1 | fused 2 | backward 0-1", "forward 0 1 | fused 2 | backward 1 0"}) {
    const Result actual = train(model, plan, 1);
    EXPECT_EQ(actual.losses, expected.losses) << plan;
    for (std::size_t i = 0; i < expected.masters.size(); ++i) EXPECT_TRUE(same_bits(actual.masters[i], expected.masters[i]));
  }
  EXPECT_NE(train(model, "fused 0-2", 2).losses, expected.losses) << "the seed is part of it";
}

std::string failure_of(const Model& model, const std::string& plan) {
  try {
    (void)train(model, plan, 0);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ModuleLayer, WhatCannotBeTrainedIsRefusedWithTheLayersName) {
  const auto plan = "forward 0 | fused 1 | backward 0";
  EXPECT_THAT(failure_of({layer<Counting>(), layer<Noisy>(4)}, plan),
              testing::AllOf(testing::HasSubstr("layer 0 ("), testing::HasSubstr("changes a buffer")));
  EXPECT_THAT(failure_of({layer<Wide>("complex"), layer<Noisy>(4)}, plan),
              testing::AllOf(testing::HasSubstr("layer 0 ("), testing::HasSubstr("omplex")));
  EXPECT_THAT(failure_of({layer<Wide>("int"), layer<Noisy>(4)}, plan), testing::HasSubstr("an exception of unknown type"));
  const std::string shapes = failure_of({layer<Wide>("shapes"), layer<Noisy>(4)}, plan);
  EXPECT_THAT(shapes, testing::HasSubstr("layer 0 ("));
  EXPECT_THAT(shapes, testing::Not(testing::HasSubstr("\n"))) << "no C++ backtrace";
}

TEST(ModuleLayer, AHashOfArgumentsIsThatOfTheirValues) {
  const std::string text = "gelu";
  const std::string same = std::string("ge") + "lu";
  EXPECT_EQ(layer<Wide>(text.c_str()).arguments_hash, layer<Wide>(same.c_str()).arguments_hash);
  EXPECT_NE(layer<Wide>("gelu").arguments_hash, layer<Wide>("relu").arguments_hash);
  EXPECT_NE(layer<Noisy>(4).arguments_hash, layer<Noisy>(5).arguments_hash);
}

}  // namespace
}  // namespace rp::test
