// Tests torch::nn modules of the user as layers: random numbers, buffers, mistakes.
#include "roundpipe/module.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <limits>

#include "roundpipe/error.h"
#include "roundpipe/recompute.h"
#include "tests/pipeline/residual_block.h"
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
    if (is_training()) count += 1;
    return x * weight + count / 100;
  }
  at::Tensor count, weight;
};

struct WithFrozenWeight : torch::nn::Module {
  WithFrozenWeight()
      : weight(register_parameter("weight", at::full({4}, 1.5), false)),
        bias(register_parameter("bias", at::ones({4}))) {}
  at::Tensor forward(at::Tensor x) { return x * weight + bias; }
  at::Tensor weight, bias;
};

struct AllFrozen : torch::nn::Module {
  AllFrozen() : weight(register_parameter("weight", at::full({4}, 0.5), false)) {}
  at::Tensor forward(at::Tensor x) { return x * weight; }
  at::Tensor weight;
};

// Decides at random which half of its input it passes on. A recompute must not decide again.
struct Routing : torch::nn::Module {
  explicit Routing(bool remembers) : remembers(remembers), weight(register_parameter("weight", at::ones({4}))) {}
  at::Tensor forward(at::Tensor x) {
    at::Tensor route;
    if (remembers && is_recomputing()) {
      route = recompute_data().at(0);
    } else {
      route = at::full({1}, 0.5 + static_cast<double>(decisions++ % 2));
      if (remembers) save_for_recompute({route});
    }
    return x * weight * route;
  }
  static inline std::atomic<int> decisions{0};
  bool remembers;
  at::Tensor weight;
};

// Computes no values if its outputs are not read.
struct Sparing : torch::nn::Module {
  Sparing() : weight(register_parameter("weight", at::ones({4}))) {}
  at::Tensor forward(at::Tensor x) {
    const at::Tensor y = x * weight;
    if (!outputs_are_read()) {
      ++num_spared;
      y.data().fill_(std::numeric_limits<double>::quiet_NaN());
    }
    return y;
  }
  static inline std::atomic<int> num_spared{0};
  at::Tensor weight;
};

struct Misusing : torch::nn::Module {
  explicit Misusing(const char* what) : what(what), weight(register_parameter("weight", at::ones({4}))) {}
  at::Tensor forward(at::Tensor x) {
    if (what == "in place") x += 1;
    if (what == "twice") {
      save_for_recompute({x.detach()});
      save_for_recompute({x.detach()});
    }
    if (what == "gradient") save_for_recompute({x * weight.detach().clone().requires_grad_(true)});
    if (what == "first") (void)recompute_data();
    if (what == "nothing" && is_recomputing()) (void)recompute_data();
    return x * weight;
  }
  std::string what;
  at::Tensor weight;
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

struct Result {
  std::vector<double> losses;
  std::vector<at::Tensor> masters;  // masters of the trained parameters
  std::vector<at::Tensor> workings;
  std::vector<at::Tensor> buffers;
};

Result train(const Model& model, const std::string& plan, std::uint64_t seed,
             RecomputeGrain grain = RecomputeGrain::kStage) {
  at::set_num_threads(1);
  const TempDirectory scratch;
  std::ofstream(scratch.path() / "plan") << plan << "\n";
  SessionOptions options;
  options.plan = (scratch.path() / "plan").string();
  Session session(0, nullptr, options);
  Pipeline pipeline(session, model, loss("mean square", mean_square<100>),
                    {.num_microbatches = 3, .recompute_grain = grain, .seed = seed});
  session.start();
  Result result;
  auto random = at::make_generator<at::CPUGeneratorImpl>(3);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = at::randn({7, 4}, random);
    result.losses.push_back(pipeline.forward_backward(x, x.flip(1)).loss());
    pipeline.step({.learning_rate = 0.1});
  }
  pipeline.synchronize();
  for (const ParameterState& parameter : pipeline.parameters()) {
    if (parameter.master.defined()) result.masters.push_back(parameter.master.clone());
    result.workings.push_back(parameter.working.clone());
  }
  for (const BufferState& buffer : pipeline.buffers()) result.buffers.push_back(buffer.value);
  return result;
}

void expect_same(const Result& actual, const Result& expected) {
  EXPECT_EQ(actual.losses, expected.losses);
  ASSERT_EQ(actual.masters.size(), expected.masters.size());
  for (std::size_t i = 0; i < expected.masters.size(); ++i)
    EXPECT_TRUE(same_bits(actual.masters[i], expected.masters[i])) << i;
  ASSERT_EQ(actual.buffers.size(), expected.buffers.size());
  for (std::size_t i = 0; i < expected.buffers.size(); ++i)
    EXPECT_TRUE(at::equal(actual.buffers[i], expected.buffers[i])) << i;
}

constexpr std::array kPlansOfThree = {"forward 0-1 | fused 2 | backward 0-1", "forward 0 1 | fused 2 | backward 1 0",
                                      "forward 0 | fused 1-2 | backward 0"};

// One plan keeps the forward's graph, the other recomputes it. Their weights are equal only if both
// drew the same masks.
TEST(ModuleLayer, DropoutDrawsTheSameInRecomputeAndInAnyPlan) {
  const Model model{layer<Noisy>(4), layer<Noisy>(4), layer<Noisy>(4)};
  const Result expected = train(model, "fused 0-2", 1);
  for (const char* plan : {"forward 0-1 | fused 2 | backward 0-1", "forward 0 1 | fused 2 | backward 1 0"}) {
    const Result actual = train(model, plan, 1);
    EXPECT_EQ(actual.losses, expected.losses) << plan;
    for (std::size_t i = 0; i < expected.masters.size(); ++i)
      EXPECT_TRUE(same_bits(actual.masters[i], expected.masters[i]));
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

TEST(ModuleLayer, BuffersChangeOncePerMicrobatchWhateverIsRecomputed) {
  const Model model{layer<Counting>(), layer<Noisy>(4), layer<Counting>()};
  const Result expected = train(model, "fused 0-2", 1);
  ASSERT_EQ(expected.buffers.size(), 2U);
  EXPECT_EQ(expected.buffers[0].item<double>(), 3.0 * static_cast<double>(expected.losses.size()));
  for (const char* plan : kPlansOfThree) {
    SCOPED_TRACE(plan);
    expect_same(train(model, plan, 1), expected);
  }
}

TEST(ModuleLayer, FrozenParametersStayAsTheyAreWhateverThePlan) {
  const Model model{layer<AllFrozen>(), layer<WithFrozenWeight>(), layer<Noisy>(4)};
  const Result expected = train(model, "fused 0-2", 1);
  EXPECT_EQ(expected.masters.size(), 3U) << "bias, and the linear layer's two";
  EXPECT_TRUE(at::equal(expected.workings.at(0), at::full({4}, 0.5)));
  EXPECT_TRUE(at::equal(expected.workings.at(1), at::full({4}, 1.5)));
  EXPECT_FALSE(at::equal(expected.workings.at(2), at::ones({4}))) << "the bias is trained";
  for (const char* plan : kPlansOfThree) {
    SCOPED_TRACE(plan);
    expect_same(train(model, plan, 1), expected);
  }
}

TEST(ModuleLayer, AModelWithoutAnythingToTrainOnlyGivesItsLoss) {
  const Model model{layer<AllFrozen>(), layer<AllFrozen>(), layer<AllFrozen>()};
  const Result expected = train(model, "fused 0-2", 1);
  EXPECT_TRUE(expected.masters.empty());
  for (const char* plan : kPlansOfThree) expect_same(train(model, plan, 1), expected);
}

TEST(ModuleLayer, WhatWasDecidedInTheForwardHoldsInTheRecompute) {
  const auto train_with = [](bool remembers, const char* plan) {
    Routing::decisions = 0;
    return train({layer<Noisy>(4), layer<Routing>(remembers), layer<Noisy>(4)}, plan, 1);
  };
  const Result expected = train_with(true, "fused 0-2");
  for (const char* plan : kPlansOfThree) {
    SCOPED_TRACE(plan);
    expect_same(train_with(true, plan), expected);
  }
  EXPECT_NE(train_with(false, kPlansOfThree[0]).losses, expected.losses) << "else this test shows nothing";
}

TEST(ModuleLayer, OutputsThatNothingReadsMayHaveAnyValues) {
  const Model model{layer<Sparing>(), layer<Noisy>(4), layer<Sparing>(), layer<Sparing>(), layer<Noisy>(4)};
  const Result expected = train(model, "fused 0-4", 1);
  EXPECT_EQ(Sparing::num_spared, 0) << "nothing is recomputed";
  struct Case {
    const char* plan;
    RecomputeGrain grain;
    int spared_of_a_microbatch;
  };
  for (const Case& c : {Case{"forward 0-3 | fused 4 | backward 0-3", RecomputeGrain::kStage, 1},
                        Case{"forward 0-3 | fused 4 | backward 0-3", RecomputeGrain::kLayer, 3},
                        Case{"forward 0-3 | fused 4 | backward 3 2 0-1", RecomputeGrain::kStage, 2},
                        Case{"forward 0-1 | fused 2-4 | backward 0-1", RecomputeGrain::kStage, 0},
                        Case{"forward 0-1 | fused 2-4 | backward 0-1", RecomputeGrain::kLayer, 1}}) {
    SCOPED_TRACE(testing::Message() << c.plan << ", grain " << static_cast<int>(c.grain));
    Sparing::num_spared = 0;
    expect_same(train(model, c.plan, 1, c.grain), expected);
    EXPECT_EQ(Sparing::num_spared, 3 * 3 * c.spared_of_a_microbatch) << "3 steps of 3 microbatches";
  }
  EXPECT_TRUE(outputs_are_read()) << "outside of any layer";
}

TEST(ModuleLayer, WhatCannotBeTrainedIsRefusedWithTheLayersName) {
  const auto plan = "forward 0 | fused 1 | backward 0";
  EXPECT_THAT(failure_of({layer<Wide>("complex"), layer<Noisy>(4)}, plan),
              testing::AllOf(testing::HasSubstr("layer 0 ("), testing::HasSubstr("omplex")));
  EXPECT_THAT(failure_of({layer<Wide>("int"), layer<Noisy>(4)}, plan),
              testing::HasSubstr("an exception of unknown type"));
  const std::string shapes = failure_of({layer<Wide>("shapes"), layer<Noisy>(4)}, plan);
  EXPECT_THAT(shapes, testing::HasSubstr("layer 0 ("));
  EXPECT_THAT(shapes, testing::Not(testing::HasSubstr("\n"))) << "no C++ backtrace";
  for (const auto& [what, message] :
       std::vector<std::pair<const char*, const char*>>{{"in place", "changes an input in place"},
                                                        {"twice", "called twice"},
                                                        {"gradient", "requires a gradient"},
                                                        {"first", "is for a recompute"},
                                                        {"nothing", "saved nothing"}}) {
    EXPECT_THAT(failure_of({layer<Misusing>(what), layer<Noisy>(4)}, plan), testing::HasSubstr(message)) << what;
  }
  EXPECT_THROW((void)is_recomputing(), Error) << "outside of any layer";
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
