// Tests what `asynchronous` means: the gradients of a step are computed with the weights of the
// step before last, and nothing else is different. The pipeline is compared with a plain loop whose
// gradients wait in a queue before they are applied.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <deque>

#include "roundpipe/roundpipe.h"
#include "tests/models/golden.h"
#include "tests/pipeline/residual_block.h"
#include "tests/reference/reference_loop.h"

namespace rp::test {
namespace {

using models::same_bits;
using Weights = std::vector<at::Tensor>;

constexpr int kLayers = 3, kSize = 5, kSteps = 7, kMicrobatches = 3;
const AdamW kRule{.learning_rate = 0.02, .weight_decay = 0.1};

struct Examples {
  at::Tensor x, y;
};

std::vector<Examples> batches(int count) {
  auto random = at::make_generator<at::CPUGeneratorImpl>(11);
  std::vector<Examples> result;
  for (int i = 0; i < count; ++i) result.push_back({at::randn({7, kSize}, random), at::randn({7, kSize}, random)});
  return result;
}

struct Trained {
  std::vector<double> losses;    // by round
  std::vector<Weights> weights;  // after each step, by step
};

// The plain loop

// Returns a copy, because the rounding of a matrix product depends on where its operands begin in
// memory.
at::Tensor part_of(const at::Tensor& batch, int m) { return batch.tensor_split(kMicrobatches)[m].clone(); }

// Adds the gradients of a batch at these weights. Returns its loss.
double add_gradients(const Weights& weights, const Examples& batch, Weights& gradients) {
  Weights leaves;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    leaves.push_back(weights[i].clone().requires_grad_(true));
    leaves.back().mutable_grad() = at::zeros_like(weights[i]);
  }
  double total = 0;
  for (int m = 0; m < kMicrobatches; ++m) {
    at::Tensor x = part_of(batch.x, m);
    for (std::size_t layer = 0; layer < kLayers; ++layer)
      x = x + torch::tanh(at::linear(x, leaves[2 * layer], leaves[2 * layer + 1]));
    const at::Tensor loss = mean_square<64>(x, part_of(batch.y, m));
    loss.backward();
    total += loss.item<double>();
  }
  for (std::size_t i = 0; i < weights.size(); ++i) gradients[i] += leaves[i].grad();
  return total;
}

// The gradients of each step are applied once those of `delay` later steps exist.
Trained train_plainly(const Weights& initial, int rounds_per_step, int delay) {
  const std::vector<Examples> data = batches(kSteps * rounds_per_step);
  std::vector<reference::Parameter> parameters;
  for (const at::Tensor& value : initial)
    parameters.push_back({"", value.clone(), at::zeros_like(value), at::zeros_like(value), {}});
  const auto weights = [&] {
    Weights result;
    for (const reference::Parameter& parameter : parameters) result.push_back(parameter.master.clone());
    return result;
  };
  Trained result;
  std::deque<Weights> waiting;
  for (int step = 1; step <= kSteps; ++step) {
    while (static_cast<int>(waiting.size()) <= delay && result.losses.size() < data.size()) {
      Weights& gradients = waiting.emplace_back();
      for (const at::Tensor& value : initial) gradients.push_back(at::zeros_like(value));
      for (int round = 0; round < rounds_per_step; ++round) {
        result.losses.push_back(add_gradients(weights(), data[result.losses.size()], gradients));
      }
    }
    for (std::size_t i = 0; i < parameters.size(); ++i)
      reference::adamw(parameters[i], waiting.front()[i], kRule, step);
    waiting.pop_front();
    result.weights.push_back(weights());
  }
  return result;
}

// The pipeline

struct PipelineRun {
  PipelineRun(int rounds_per_step, bool asynchronous, const char* plan)
      : pipeline(session, Model{layer<ResidualBlock>(kSize), layer<ResidualBlock>(kSize), layer<ResidualBlock>(kSize)},
                 loss("mean square", mean_square<64>),
                 {.num_microbatches = kMicrobatches,
                  .plan = plan,
                  .rounds_per_step = rounds_per_step,
                  .asynchronous = asynchronous}) {
    at::set_num_threads(1);
    session.start();
  }

  [[nodiscard]] Weights weights() {
    pipeline.synchronize();
    Weights result;
    for (const ParameterState& parameter : pipeline.parameters()) result.push_back(parameter.master.clone());
    return result;
  }

  // If `looks`, the weights are read after each step, not only at the end.
  Trained train(int rounds_per_step, bool asynchronous, bool looks) {
    Trained result;
    std::vector<RoundResult> rounds;
    for (const Examples& batch : batches(kSteps * rounds_per_step)) {
      rounds.push_back(pipeline.forward_backward(batch.x, batch.y));
      if (rounds.size() % static_cast<std::size_t>(rounds_per_step) != 0) continue;
      pipeline.step(kRule, {.asynchronous = asynchronous});
      if (looks) result.weights.push_back(weights());
    }
    if (!looks) result.weights.push_back(weights());
    for (const RoundResult& round : rounds) result.losses.push_back(round.loss());
    return result;
  }

  Session session{0, nullptr};
  Pipeline pipeline;
};

void expect_delay(bool asynchronous, int delay) {
  for (const int rounds_per_step : {1, 2}) {
    for (const char* plan : {"fused 0-2", "forward 0 1 | fused 2 | backward 0-1"}) {
      SCOPED_TRACE(testing::Message() << rounds_per_step << " rounds per step, plan " << plan);
      PipelineRun looking(rounds_per_step, asynchronous, plan);
      const Trained expected = train_plainly(looking.weights(), rounds_per_step, delay);
      const Trained actual = looking.train(rounds_per_step, asynchronous, /*looks=*/true);
      EXPECT_EQ(actual.losses, expected.losses);
      for (std::size_t step = 0; step < kSteps; ++step) {
        SCOPED_TRACE(testing::Message() << "after step " << step + 1);
        expect_same(actual.weights.at(step), expected.weights.at(step));
      }
      PipelineRun running(rounds_per_step, asynchronous, plan);
      const Trained undisturbed = running.train(rounds_per_step, asynchronous, /*looks=*/false);
      EXPECT_EQ(undisturbed.losses, expected.losses);
      expect_same(undisturbed.weights.back(), expected.weights.back());
    }
  }
}

TEST(AsyncSemantics, AnAsynchronousStepAppliesGradientsThatAreOneStepLate) {
  expect_delay(/*asynchronous=*/true, /*delay=*/1);
}

TEST(AsyncSemantics, ASynchronousStepAppliesGradientsOfItsOwnWeights) {
  expect_delay(/*asynchronous=*/false, /*delay=*/0);
}

TEST(AsyncSemantics, EachDelayGivesOtherLossesFromTheFirstRoundThatItReaches) {
  const Weights initial = PipelineRun(1, false, "fused 0-2").weights();
  const std::vector<double> none = train_plainly(initial, 1, 0).losses, one = train_plainly(initial, 1, 1).losses,
                            two = train_plainly(initial, 1, 2).losses;
  EXPECT_EQ(one[0], none[0]);
  EXPECT_EQ(two[1], one[1]) << "the second step has nothing older than the initial weights";
  for (std::size_t step = 1; step < kSteps; ++step) EXPECT_NE(one[step], none[step]) << step;
  for (std::size_t step = 2; step < kSteps; ++step) EXPECT_NE(two[step], one[step]) << step;
}

}  // namespace
}  // namespace rp::test
