// Compares the runtime with the reference loop: they must compute the same bits.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/pipeline/tiny_run.h"

namespace rp::test {
namespace {

using models::same_bits;

// An embedding, two decoder layers, and a head.
constexpr const char* kPlans[] = {"", "fused 0-3", "forward 0-1 2 | fused 3 | backward 2 1 0",
                                  "forward 0 1 | fused 2-3 | backward 0-1"};

void expect_reference(const TinySettings& settings) {
  at::set_num_threads(1);  // as many threads as the worker has, because some sums depend on the number
  constexpr int kSteps = 4;
  const auto rounds = tiny_rounds(kSteps * settings.options.rounds_per_step);
  reference::Settings plain{.num_microbatches = settings.options.num_microbatches,
                            .rounds_per_step = settings.options.rounds_per_step,
                            .asynchronous = settings.options.asynchronous,
                            .max_grad_norm = settings.max_grad_norm,
                            .rule = tiny_rule()};
  const auto expected =
      reference::train(models::load(models::tiny_directory(), settings.dtype), models::causal_lm_loss(), rounds, plain);
  TinyRun run(settings);
  std::vector<double> losses;
  run.train(rounds, 0, rounds.size(), losses);
  EXPECT_EQ(losses, expected.losses);
  ASSERT_EQ(run.steps.size(), expected.grad_norms.size());
  for (std::size_t i = 0; i < run.steps.size(); ++i) {
    EXPECT_NEAR(run.steps[i].grad_norm(), expected.grad_norms[i], 1e-12 * expected.grad_norms[i]);
  }
  const std::vector<ParameterState> parameters = run.pipeline().parameters();
  ASSERT_EQ(parameters.size(), expected.parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    SCOPED_TRACE(parameters[i].name);
    EXPECT_EQ(parameters[i].name, expected.parameters[i].name);
    EXPECT_TRUE(same_bits(parameters[i].master, expected.parameters[i].master));
    EXPECT_TRUE(same_bits(parameters[i].moment1, expected.parameters[i].moment1));
    EXPECT_TRUE(same_bits(parameters[i].moment2, expected.parameters[i].moment2));
    EXPECT_TRUE(same_bits(parameters[i].working, expected.parameters[i].working));
  }
}

TEST(Reference, SynchronousAndAsynchronousRunsHaveTheBitsOfThePlainLoop) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool asynchronous : {false, true}) {
      for (const char* plan : kPlans) {
        for (const bool prefetch : {true, false}) {
          SCOPED_TRACE(testing::Message() << at::toString(dtype) << " asynchronous " << asynchronous << " plan '"
                                          << plan << "' prefetch " << prefetch);
          TinySettings settings;
          settings.dtype = dtype;
          settings.options.num_microbatches = 3;
          settings.options.asynchronous = asynchronous;
          settings.plan = plan;
          settings.prefetch = prefetch;
          expect_reference(settings);
        }
      }
    }
  }
}

TEST(Reference, ClippedStepsOfSeveralRoundsHaveTheBitsOfThePlainLoop) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool asynchronous : {false, true}) {
      for (const int rounds_per_step : {1, 3}) {
        SCOPED_TRACE(testing::Message() << at::toString(dtype) << " asynchronous " << asynchronous
                                        << " rounds per step " << rounds_per_step);
        TinySettings settings;
        settings.dtype = dtype;
        settings.options.num_microbatches = 2;
        settings.options.rounds_per_step = rounds_per_step;
        settings.options.asynchronous = asynchronous;
        settings.max_grad_norm = 0.5;
        settings.plan = kPlans[2];
        expect_reference(settings);
      }
    }
  }
}

}  // namespace
}  // namespace rp::test
