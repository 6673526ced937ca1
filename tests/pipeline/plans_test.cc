// Tests plans as a program sees them: for each kind of call, written by hand and automatic, and the
// times on which they are based.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "roundpipe/roundpipe.h"
#include "tests/common/expect_refusal.h"
#include "tests/pipeline/residual_block.h"

namespace rp::test {
namespace {

using testing::HasSubstr;

struct PlannedProgram {
  explicit PlannedProgram(PipelineOptions options)
      : session(0, nullptr),
        pipeline(session,
                 {layer<ResidualBlock>(8), layer<ResidualBlock>(8), layer<ResidualBlock>(8), layer<ResidualBlock>(8)},
                 loss("mean square", mean_square<32>), with_microbatches(options)) {
    at::set_num_threads(1);
    session.start();
  }
  static PipelineOptions with_microbatches(PipelineOptions options) {
    options.num_microbatches = 2;
    return options;
  }
  double train(const CallOptions& options = {}) {
    const double value = pipeline.forward_backward(x, x.flip(0), options).loss();
    pipeline.step(Sgd{.learning_rate = 0.01});
    pipeline.synchronize();
    return value;
  }
  at::Tensor x = at::arange(32, at::kFloat).view({4, 8}) / 32;
  Session session;
  Pipeline pipeline;
};

TEST(StepTimes, AreMeasuredAndSimulatedFromTheThirdStepOn) {
  PlannedProgram run({.plan = "forward 0-1 | fused 2-3 | backward 1 0"});
  (void)run.train();
  (void)run.train();
  EXPECT_EQ(run.pipeline.step_times().num_steps, 0);
  for (int step = 0; step < 3; ++step) (void)run.train();
  const StepTimes times = run.pipeline.step_times();
  EXPECT_EQ(times.num_steps, 3);
  EXPECT_GT(times.measured_ms, 0);
  EXPECT_GT(times.busy, 0);
  EXPECT_LE(times.busy, 1);
  EXPECT_GT(times.simulated_ms, 0);
  EXPECT_NEAR(times.simulated_busy, 1, 1e-6) << "one worker never waits";
}

TEST(StepTimes, OfRoundsThroughAutogradAreOnlyMeasured) {
  PlannedProgram run({});
  for (int step = 0; step < 4; ++step) {
    run.pipeline.forward(run.x).at(0).sum().backward();
    run.pipeline.step(Sgd{.learning_rate = 0.01});
  }
  const StepTimes times = run.pipeline.step_times();
  EXPECT_GT(times.num_steps, 0);
  EXPECT_GT(times.measured_ms, 0);
  EXPECT_EQ(times.simulated_ms, 0);
}

TEST(Plans, ByHandDoForTheKindsOfCallsThatTheyHaveStagesFor) {
  PlannedProgram run({.plan = "forward 0-1 | fused 2-3 | backward 1 0"});
  EXPECT_EQ(run.pipeline.plan_text(), "forward 0-1 | fused 2-3 | backward 1-1 0-0");
  EXPECT_EQ(run.pipeline.plan_text(PlanKind::kTrain), "forward 0-1 2-3 | backward 2-3 1-1 0-0");
  EXPECT_EQ(run.pipeline.plan_text(PlanKind::kInfer), "forward 0-1 2-3");
  (void)run.train();

  const at::Tensor expected = run.pipeline.forward(run.x, {.requires_grad = false}).at(0);
  EXPECT_TRUE(
      at::equal(run.pipeline.forward(run.x, {.plan = "forward 0 1-3", .requires_grad = false}).at(0), expected));
  const at::Tensor output = run.pipeline.forward(run.x, {.plan = "forward 0-3 | backward 3 0-2"}).at(0);
  EXPECT_TRUE(at::equal(output, expected));
  output.sum().backward();
  run.pipeline.step(Sgd{});

  EXPECT_THAT(error_of([&] { (void)run.train({.plan = "forward 0-3 | backward 3 0-2"}); }),
              HasSubstr("needs a fused stage"));
  EXPECT_THAT(error_of([&] { (void)run.pipeline.forward(run.x, {.plan = "forward 0-3"}); }),
              HasSubstr("needs backward stages"));
  EXPECT_THAT(error_of([&] { (void)run.pipeline.forward(run.x, {.plan = "forward 0-2", .requires_grad = false}); }),
              HasSubstr("end before layer 3"));
}

TEST(Plans, WithoutALossMayHaveNoFusedStage) {
  Session session(0, nullptr);
  Pipeline pipeline(session, {layer<ResidualBlock>(8), layer<ResidualBlock>(8)}, std::vector<Loss>{},
                    {.num_microbatches = 2, .plan = "forward 0 1"});
  session.start();
  const at::NoGradGuard no_grad;
  EXPECT_EQ(pipeline.forward(at::ones({4, 8})).at(0).sizes(), (std::vector<std::int64_t>{4, 8}));
}

TEST(Plans, ThatAreAutomaticKeepTheirLimits) {
  PlannedProgram run({.plan_limits = {.max_stage_bytes = 600}});  // fits two layers of 288 bytes
  for (int step = 0; step < 3; ++step) (void)run.train();
  for (const PlanKind kind : {PlanKind::kFused, PlanKind::kTrain, PlanKind::kInfer}) {
    const std::string text = run.pipeline.plan_text(kind);
    for (const char* wide : {"0-2", "1-3", "0-3"}) EXPECT_THAT(text, testing::Not(HasSubstr(wide)));
  }
  EXPECT_THAT(error_of([] { PlannedProgram run({.plan_limits = {.threshold = 0.5}}); }), HasSubstr("threshold is 0.5"));
  EXPECT_THAT(error_of([] { PlannedProgram run({.plan_limits = {.min_stages = -1}}); }), HasSubstr("min_stages is -1"));
}

TEST(LayerTimes, AreKnownForWhatRan) {
  PlannedProgram run({.plan = "forward 0-1 | fused 2-3 | backward 0-1"});
  for (const LayerTiming& time : run.pipeline.layer_times()) EXPECT_EQ(time.forward, 0);
  for (int step = 0; step < 3; ++step) (void)run.train();
  const auto times = run.pipeline.layer_times();
  ASSERT_EQ(times.size(), 4U);
  for (std::size_t layer = 0; layer < 4; ++layer) {
    EXPECT_GT(times[layer].forward, 0) << layer;
    EXPECT_GT(times[layer].backward, 0) << layer;
    EXPECT_EQ(times[layer].recompute > 0, layer < 2) << layer;
    EXPECT_LT(times[layer].forward, 1e9) << layer;
  }
}

}  // namespace
}  // namespace rp::test
