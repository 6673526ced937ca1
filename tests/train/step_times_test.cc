#include "train/run/step_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model_files/profile_file.h"
#include "planner/prediction/run_prediction.h"

namespace rp {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kPlan = "forward 0-9 | fused 10-29 | backward 0-9";

TrainSettings qwen() {
  TrainSettings settings;
  settings.model = "preset:qwen3-1.7b";
  settings.batch_size = 32;
  settings.num_microbatches = 4;
  settings.rounds_per_step = 2;
  settings.sequence_length = 2048;
  return settings;
}

TEST(StepTimes, AreMeasuredSimulatedAndPredictedSideBySide) {
  const StepTimes times{
      .num_steps = 58, .measured_ms = 120, .busy = 0.871, .simulated_ms = 100, .simulated_busy = 0.95};
  EXPECT_EQ(step_times_text(times, PredictedStep{.profile = "RTX 4090", .step_ms = 80}),
            "step: 120.0 ms, the median of 58; workers compute 87.1 % of the time\n"
            "  simulated from what its layers took: 100.0 ms, measured 1.20 times as much\n"
            "  predicted from the model's shape for RTX 4090: 80.0 ms, measured 1.50 times as much");
  EXPECT_THAT(step_times_text(times, std::nullopt), Not(HasSubstr("predicted")));
  EXPECT_THAT(step_times_text(times, PredictedStep{.profile = "x", .problem = "because"}),
              HasSubstr("\n  not predicted for x: because"));
  EXPECT_THAT(step_times_text({.num_steps = 3, .measured_ms = 1}, std::nullopt), Not(HasSubstr("simulated")));
  EXPECT_EQ(step_times_text({}, std::nullopt), "");
}

TEST(StepTimes, ArePredictedAsRpPlanPredictsThem) {
  const PredictedStep predicted = predict_step(qwen(), "rtx4090", kPlan, 2);
  EXPECT_EQ(predicted.problem, "");
  EXPECT_EQ(predicted.profile, gpu_profile("rtx4090").profile.name);
  const TrainingSetup setup{.model = preset_config("qwen3-1.7b"),
                            .gpu = gpu_profile("rtx4090").profile,
                            .server = server_profile("xeon6330-8gpu").profile,
                            .num_gpus = 2,
                            .batch = 32,
                            .round_microbatches = 4,
                            .rounds_per_step = 2,
                            .recompute = RecomputeGrain::kStage};
  EXPECT_DOUBLE_EQ(predicted.step_ms, predict_plan(setup, parse_plan(kPlan, 30)).run.step_ms);
  EXPECT_GT(predict_step(qwen(), "rtx4090", kPlan, 1).step_ms, predicted.step_ms) << "one GPU has all the work";
  const PredictedStep on_two = predict_step(qwen(), "rtx4090", kPlan, 2, false, 2);
  EXPECT_THAT(on_two.profile, HasSubstr("on 2 nodes, without the network"));
  EXPECT_NEAR(on_two.step_ms / predicted.step_ms, 0.5, 0.1) << "each node has one of two rounds";
  const PredictedStep with_network = predict_step(qwen(), "rtx4090", kPlan, 2, false, 2, "10gbit");
  EXPECT_THAT(with_network.profile, HasSubstr("on 2 nodes"));
  EXPECT_GT(with_network.step_ms, on_two.step_ms);
  EXPECT_DOUBLE_EQ(predict_step(qwen(), "rtx4090", kPlan, 2, true).step_ms, predicted.step_ms)
      << "bf16 has no such sums";
  TrainSettings half = qwen();
  half.dtype = DType::kFloat16;
  TrainingSetup in_fp16 = setup;
  in_fp16.accumulate = Accumulate::kFp16;
  EXPECT_DOUBLE_EQ(predict_step(half, "rtx4090", kPlan, 2, true).step_ms,
                   predict_plan(in_fp16, parse_plan(kPlan, 30)).run.step_ms);
  TrainSettings longer = qwen();
  longer.batch_size *= 2;
  EXPECT_NEAR(predict_step(longer, "rtx4090", kPlan, 2).step_ms / predicted.step_ms, 2, 0.2);
}

TEST(StepTimes, ThatCannotBePredictedSayWhy) {
  TrainSettings settings = qwen();
  settings.dtype = DType::kFloat32;
  EXPECT_THAT(predict_step(settings, "rtx4090", kPlan, 1).problem, HasSubstr("--dtype is fp32"));
  EXPECT_THAT(predict_step(qwen(), "rtx4090", "forward 0-3 | fused 4-7 | backward 0-3", 1).problem, Not(""));
  settings = qwen();
  settings.model = "/nowhere";
  EXPECT_THAT(predict_step(settings, "rtx4090", kPlan, 1).problem, Not(""));
  EXPECT_THAT(predict_step(qwen(), "rtx490", kPlan, 1).problem, HasSubstr("rtx490"));
}

}  // namespace
}  // namespace rp
