// Tests that each kind of layer runs once, forward and backward, before the first task. The tests
// use the processor, which would not need a warm-up.
#include "pipeline/torch_worker/warm_up.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "roundpipe/recompute.h"
#include "roundpipe/roundpipe.h"
#include "tests/common/expect_refusal.h"
#include "tests/pipeline/tiny_run.h"

namespace rp::test {
namespace {

using models::same_bits;

// The calls in their order. Written by the worker's thread, and read when it has ended.
std::vector<std::string>& calls() {
  static std::vector<std::string> list;
  return list;
}

// A layer that records its calls, forward and backward.
struct Noted : torch::nn::Module {
  explicit Noted(const char* name, bool is_trained = true)
      : name(name),
        weight(register_parameter("weight", at::ones({4}), is_trained)),
        count(register_buffer("count", at::zeros({1}))) {}
  at::Tensor forward(at::Tensor x) {
    if (is_training()) count += 1;
    calls().push_back(name + (at::GradMode::is_enabled() ? " with graph" : ""));
    at::Tensor y = x * weight + count / 8;
    if (at::GradMode::is_enabled())
      y.register_hook([name = name](const at::Tensor&) { calls().push_back(name + " backward"); });
    if (is_recomputing()) {
      (void)recompute_data();
    } else {
      save_for_recompute({x.detach()});
    }
    return y;
  }
  std::string name;
  at::Tensor weight, count;
};

Loss noted_loss() {
  return loss("sum", [](const at::Tensor& output, const at::Tensor& factor) {
    calls().emplace_back("loss");
    return (output * factor).sum();
  });
}

Model noted_model() {
  return Model{layer<Noted>("a"), layer<Noted>("b"), layer<Noted>("b"), layer<Noted>("b"), layer<Noted>("c")};
}

CallContents example() { return {.inputs = {at::ones({3, 4})}, .loss = "sum", .arguments = {at::ones({3, 4})}}; }

struct WarmResult {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> buffers;
  double warm_up_seconds = 0;
};

WarmResult train(Model model, bool warms_up) {
  calls().clear();
  WarmResult result;
  SessionOptions options;
  options.warm_up = warms_up;
  Session session(0, nullptr, options);
  Pipeline pipeline(session, std::move(model), noted_loss(), {.num_microbatches = 2});
  session.start();
  for (int step = 0; step < 2; ++step) {
    const at::Tensor x = at::arange(16, at::kFloat).view({4, 4}) / 16;
    result.losses.push_back(pipeline.forward_backward(x, x).loss());
    pipeline.step({.learning_rate = 0.1});
  }
  pipeline.synchronize();
  for (const ParameterState& parameter : pipeline.parameters()) result.weights.push_back(parameter.working.clone());
  for (const BufferState& buffer : pipeline.buffers()) result.buffers.push_back(buffer.value.clone());
  result.warm_up_seconds = session.warm_up_seconds();
  return result;
}

void expect_same(const WarmResult& a, const WarmResult& b) {
  EXPECT_EQ(a.losses, b.losses);
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (std::size_t i = 0; i < a.weights.size(); ++i) EXPECT_TRUE(same_bits(a.weights[i], b.weights[i])) << i;
  ASSERT_EQ(a.buffers.size(), b.buffers.size());
  for (std::size_t i = 0; i < a.buffers.size(); ++i) EXPECT_TRUE(same_bits(a.buffers[i], b.buffers[i])) << i;
}

TEST(WarmUp, RunsEachKindOfLayerOnceForwardAndBackwardBeforeAllElse) {
  Model model = noted_model();
  const WarmResult cold = train(model.set_example(example()), false);
  const std::vector<std::string> cold_calls = calls();
  EXPECT_EQ(cold.warm_up_seconds, 0);
  const WarmResult warm = train(model, true);
  EXPECT_GT(warm.warm_up_seconds, 0);
  expect_same(cold, warm);
  // The first layer passes no gradient on, so it is of another kind than the second, whatever its
  // name is.
  std::vector<std::string> expected = {"a",          "a with graph", "a backward", "b",         "b with graph",
                                       "b backward", "c with graph", "loss",       "c backward"};
  expected.insert(expected.end(), cold_calls.begin(), cold_calls.end());
  EXPECT_EQ(calls(), expected);
}

TEST(WarmUp, LeavesTheBackwardOfFrozenLayersOut) {
  Model model{layer<Noted>("a", false), layer<Noted>("b", false), layer<Noted>("c"), layer<Noted>("d")};
  const WarmResult cold = train(model.set_example(example()), false);
  const std::vector<std::string> cold_calls = calls();
  expect_same(cold, train(model, true));
  std::vector<std::string> expected = {"a",    "b",         "c", "c with graph", "c backward", "d with graph",
                                       "loss", "d backward"};
  expected.insert(expected.end(), cold_calls.begin(), cold_calls.end());
  EXPECT_EQ(calls(), expected);
}

TEST(WarmUp, RunsTheLastLayerLikeTheOthersWhereTheExampleHasNoLoss) {
  Model model{layer<Noted>("a"), layer<Noted>("b")};
  model.set_example({.inputs = {at::ones({3, 4})}, .loss = "", .arguments = {}});
  (void)train(model, true);
  const std::vector<std::string> first(calls().begin(), calls().begin() + 6);
  EXPECT_THAT(first, testing::ElementsAre("a", "a with graph", "a backward", "b", "b with graph", "b backward"));
}

TEST(WarmUp, DoesNothingWithoutAnExample) {
  const WarmResult warm = train(noted_model(), true);
  EXPECT_EQ(warm.warm_up_seconds, 0);
  EXPECT_EQ(std::count(calls().begin(), calls().end(), "loss"), 4) << "two microbatches, two steps";
}

TEST(WarmUp, SaysWhichLayerDoesNotRunOnTheExample) {
  Model model = noted_model();
  model.set_example({.inputs = {at::ones({3, 5})}, .loss = "sum", .arguments = {at::ones({3, 5})}});
  EXPECT_THAT(error_of([&] { (void)train(model, true); }),
              testing::AllOf(testing::HasSubstr("layer 0 does not run on the model's example, before the first task"),
                             testing::HasSubstr("--warm-up 0")));
  model.set_example({.inputs = {at::ones({3, 4})}, .loss = "sum", .arguments = {at::ones({3, 5})}});
  EXPECT_THAT(error_of([&] { (void)train(model, true); }),
              testing::HasSubstr("the loss does not run on the model's example"));
}

// A model with tied weights, grouped queries and a loss in chunks, and the example that load()
// returns.
TEST(WarmUp, LeavesTheBitsOfAModelAsTheyAre) {
  const auto rounds = tiny_rounds(2);
  std::vector<std::vector<double>> losses(2);
  for (const bool warms_up : {false, true}) {
    TinyRun run({.dtype = at::kBFloat16, .options = {.num_microbatches = 3}, .warm_up = warms_up});
    run.train(rounds, 0, 2, losses[warms_up ? 1 : 0]);
    EXPECT_EQ(run.session().warm_up_seconds() > 0, warms_up);
  }
  EXPECT_EQ(losses[0], losses[1]);
}

}  // namespace
}  // namespace rp::test
