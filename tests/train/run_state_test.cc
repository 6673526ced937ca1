#include "train/run/run_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "tests/common/expect_refusal.h"

namespace rp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::filesystem::path kPlace = "run/checkpoint-20";

TrainSettings settings() {
  TrainSettings s;
  s.max_steps = 60;
  s.batch_size = 8;
  s.num_microbatches = 4;
  s.sequence_length = 64;
  s.learning_rate = 1e-4;
  s.seed = 7;
  return s;
}

constexpr DataIdentity kData{.checksum = 0xFFFFFFFF, .sequences = 100};

const ModelIdentity kModel{.config = {{"/model_type", "\"llama\""}, {"/rope_theta", "10000.0"}}, .weights = "00"};

SavedRun saved() { return parse_run_state(kPlace, run_state_text({20, 160, settings(), 1, kData, kModel})); }

// Returns the notes of check_resume(). Throws the differences that matter as one error.
std::vector<std::string> checked(const TrainSettings& s, const DataIdentity& data = kData, int threads_per_worker = 1,
                                 const ModelIdentity& model = kModel) {
  Problems problems;
  std::vector<std::string> notes = check_resume(kPlace, saved(), {0, 0, s, threads_per_worker, data, model}, problems);
  problems.throw_if_any();
  return notes;
}

TEST(RunState, ComesBackAsItWasWritten) {
  const SavedRun run = saved();
  EXPECT_EQ(run.step, 20);
  EXPECT_EQ(run.data_cursor, 160U);
  EXPECT_EQ(run.data.checksum, kData.checksum);
  EXPECT_TRUE(checked(settings()).empty());
}

TEST(RunState, PathsWhenToSaveAndWhatIsRecomputedMayChangeWithoutAWord) {
  TrainSettings s = settings();
  s.model = "elsewhere";
  s.output = "other";
  s.save_every = {.steps = 3};
  s.recompute_grain = RecomputeGrain::kLayer;
  s.resume = "x";
  EXPECT_TRUE(checked(s).empty());
}

TEST(RunState, AnotherNumberOfThreadsIsReported) {
  EXPECT_THAT(checked(settings(), kData, 2), ElementsAre(HasSubstr("threads-per-worker is 2 from here on; it was 1")));
}

TEST(RunState, DifferencesThatAreAllowedAreReported) {
  TrainSettings s = settings();
  s.learning_rate = 5e-5;
  s.max_steps = 90;
  EXPECT_THAT(checked(s), ElementsAre("max-steps is 90 from here on; it was 60",
                                      "learning-rate is 5e-05 from here on; it was 1e-04"));
}

TEST(RunState, TheRateOfCorrectionsMayChangeButNotWhetherTheyAreTrained) {
  const auto with_rate = [](double rate) {
    TrainSettings s = settings();
    s.router_bias_update_rate = rate;
    s.parts.corrections = rate > 0;
    return RunState{20, 160, s, 1, kData, kModel};
  };
  const auto notes = [&](double before, double now) {
    Problems problems;
    const SavedRun run = parse_run_state(kPlace, run_state_text(with_rate(before)));
    std::vector<std::string> found = check_resume(kPlace, run, with_rate(now), problems);
    problems.throw_if_any();
    return found;
  };
  EXPECT_THAT(notes(1e-3, 1e-4), ElementsAre("router-bias-update-rate is 1e-04 from here on; it was 0.001"));
  expect_error(ExitCode::kUsage, {"--router-bias-update-rate is 0.001, but", "was saved with 0"},
               [&] { (void)notes(0, 1e-3); });
  expect_error(ExitCode::kUsage, {"--router-bias-update-rate is 0 (", "was saved with 0.001"},
               [&] { (void)notes(1e-3, 0); });
}

TEST(RunState, EveryDifferenceThatMattersIsRefusedTogether) {
  TrainSettings s = settings();
  s.seed = 8;
  s.batch_size = 16;
  s.num_microbatches = 8;
  s.sequence_length = 32;
  s.rounds_per_step = 2;
  s.asynchronous = true;
  s.dtype = DType::kFloat32;
  s.max_steps = 19;
  expect_error(
      ExitCode::kUsage,
      {"8 problems", "--seed is 8, but run/checkpoint-20 was saved with 7", "--batch-size", "--num-microbatches",
       "--sequence-length", "--rounds-per-step", "--async is true", "--dtype is fp32", "--max-steps 19 is passed"},
      [&] { (void)checked(s); });
}

TEST(RunState, OtherDataIsRefused) {
  expect_error(ExitCode::kUsage, {"--data", "is not the data"},
               [&] { (void)checked(settings(), {.checksum = 1, .sequences = 100}); });
}

TEST(RunState, EveryDifferenceOfTheModelIsNamed) {
  ModelIdentity other = kModel;
  other.config = {{"/model_type", "\"llama\""}, {"/rope_theta", "500000.0"}, {"/head_dim", "8"}};
  expect_error(
      ExitCode::kUsage,
      {"2 problems", "/rope_theta is 500000.0, and was 10000.0", "/head_dim is 8, and was absent", "run/checkpoint-20"},
      [&] { (void)checked(settings(), kData, 1, other); });
  other = kModel;
  other.weights = "11";
  EXPECT_THAT(error_of([&] { (void)checked(settings(), kData, 1, other); }),
              HasSubstr("its weights, some of which are not trained, are others"));
}

TEST(RunState, TextThatIsNotOursIsBadInput) {
  for (const char* text :
       {"", "{}", "[1]", R"({"program": "other", "version": 2})", R"({"program": "train", "version": 9})"}) {
    expect_refusal({kPlace.string()}, [&] { (void)parse_run_state(kPlace, text); });
  }
}

TEST(RunState, NumbersThatDoNotFitAreRefused) {
  const std::string text = run_state_text({20, 160, settings(), 1, kData, kModel});
  for (const auto& [key, value] : {std::pair{"data_checksum", "4294967296"},
                                   {"data_cursor", "-1"},
                                   {"step", "18446744073709551615"},
                                   {"step", "1.5"}}) {
    nlohmann::json json = nlohmann::json::parse(text);
    json[key] = nlohmann::json::parse(value);
    expect_refusal({kPlace.string(), key, value}, [&] { (void)parse_run_state(kPlace, json.dump()); });
  }
}

}  // namespace
}  // namespace rp
