#include "planner/published_runs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace rp::test {
namespace {

// The profile is calibrated by the single-GPU column; the other columns are predicted.
TEST(PublishedScaling, IsPredictedBetterThanByAStraightLine) {
  double predicted = 0, line = 0, of_one_gpu = 0;
  int cells = 0;
  std::vector<PublishedRun> runs = published_runs();
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    if (run->has_experts || !run->asynchronous) continue;
    SCOPED_TRACE(run->preset);
    if (run->num_gpus == 1) of_one_gpu = run->tokens_per_s;
    const double deviation = std::abs(predict_as_published(*run).tokens_per_s / run->tokens_per_s - 1);
    EXPECT_LT(deviation, run->num_gpus == 1 ? 0.02 : 0.08);
    if (run->num_gpus == 1) continue;
    predicted += deviation;
    line += std::abs(of_one_gpu * run->num_gpus / run->tokens_per_s - 1);
    ++cells;
  }
  ASSERT_EQ(cells, 9);
  EXPECT_NEAR(line / cells, 0.040, 0.0005);
  EXPECT_LT(predicted / cells, 0.03);
}

TEST(PublishedRuns, AreAllCellsOfTheTables) {
  const std::vector<PublishedRun> runs = published_runs();
  EXPECT_EQ(runs.size(), 5U + 4 * 4 + 1);
  int num_synchronous = 0;
  for (const PublishedRun& run : runs) num_synchronous += run.asynchronous ? 0 : 1;
  EXPECT_EQ(num_synchronous, 5);
  EXPECT_EQ(published_lengths().size(), 5U);
}

TEST(PublishedRuns, ThoseWithExpertsAreSlowerThanPredictedAndTheTextSaysBy) {
  for (const PublishedRun& run : published_runs()) {
    if (run.preset != "qwen3-235b" || run.num_gpus != 8 || !run.asynchronous) continue;
    const double predicted = predict_as_published(run).tokens_per_s;
    EXPECT_GT(predicted, 2 * run.tokens_per_s) << "what it waits for is not known";
    PublishedComparison comparison;
    comparison.runs.push_back(
        {.published = run, .as_published_tokens_per_s = predicted, .ours_tokens_per_s = 2 * run.tokens_per_s});
    EXPECT_NEAR(comparison.mean_distance(true, true), predicted / run.tokens_per_s - 1, 1e-12);
    EXPECT_EQ(comparison.mean_distance(false, true), 0) << "there are none";
    const std::string text = published_text(comparison);
    EXPECT_NE(text.find("qwen3-235b LoRA   async     8       1820"), std::string::npos) << text;
    EXPECT_NE(text.find(" 2.00\n"), std::string::npos) << text;
    const nlohmann::json json = nlohmann::json::parse(published_json(comparison));
    EXPECT_EQ(json["runs"][0]["published_tokens_per_s"], 1820);
    EXPECT_EQ(json["runs"][0]["predicted_tokens_per_s"], predicted);
  }
}

// Our kernels pass over memory less often, and our plans come from a search.
TEST(PublishedRuns, OursIsPredictedFasterOnOneGpuWhereNothingElseDiffers) {
  for (const PublishedRun& run : published_runs()) {
    if (run.num_gpus > 1 || run.has_experts) continue;
    EXPECT_GT(predict_ours(run).tokens_per_s, predict_as_published(run).tokens_per_s) << run.preset;
  }
}

}  // namespace
}  // namespace rp::test
