#include "train/settings/defaults.h"

#include <gtest/gtest.h>

namespace rp {
namespace {

constexpr std::int64_t kSmall = 134'515'008;
constexpr std::int64_t kLarge = 32'000'000'000;

TEST(DefaultsTest, FollowTheModel) {
  TrainSettings s;
  EXPECT_TRUE(needs_model(s));
  fill_in_by_model(s, kSmall, 8192);
  EXPECT_FALSE(needs_model(s));
  EXPECT_EQ(s.sequence_length, 2048);
  EXPECT_EQ(s.batch_size, 8);
  EXPECT_EQ(s.num_microbatches, 8);
  EXPECT_DOUBLE_EQ(s.learning_rate, 7e-5);
  TrainSettings short_one;
  fill_in_by_model(short_one, kSmall, 512);
  EXPECT_EQ(short_one.sequence_length, 512);
  EXPECT_EQ(short_one.batch_size, 16);
}

TEST(DefaultsTest, LargerModelsTakeSmallerStepsAndPairsLargerOnes) {
  const auto rate = [](std::int64_t parameters, int rank) {
    TrainSettings s;
    s.parts.lora.rank = rank;
    fill_in_by_model(s, parameters, 4096);
    return s.learning_rate;
  };
  EXPECT_DOUBLE_EQ(rate(kLarge, 0), 1e-5);
  EXPECT_DOUBLE_EQ(rate(7'000'000'000, 8), 2e-4);
  EXPECT_DOUBLE_EQ(rate(1'700'000'000, 0), 2e-5);
  EXPECT_DOUBLE_EQ(rate(1'000'000, 0), 1e-4) << "at most ten times as much";
}

TEST(DefaultsTest, LeaveWhatWasGiven) {
  TrainSettings s;
  s.sequence_length = 100;
  s.batch_size = 6;
  s.num_microbatches = 3;
  s.learning_rate = 0.5;
  EXPECT_FALSE(needs_model(s));
  s.max_steps = 40;
  s.warmup_steps = 0;
  fill_in_by_model(s, kSmall, 8192);
  fill_in_by_data(s, 1000);
  EXPECT_EQ(s.sequence_length, 100);
  EXPECT_EQ(s.batch_size, 6);
  EXPECT_EQ(s.num_microbatches, 3);
  EXPECT_EQ(s.learning_rate, 0.5);
  EXPECT_EQ(s.max_steps, 40);
  EXPECT_EQ(s.warmup_steps, 0);
}

TEST(DefaultsTest, ABatchHasASequenceForEachMicrobatchOfEachRound) {
  TrainSettings s;
  s.rounds_per_step = 3;
  s.num_microbatches = 5;
  fill_in_by_model(s, kSmall, 8192);
  EXPECT_EQ(s.batch_size, 15);
}

TEST(DefaultsTest, EpochsBecomeSteps) {
  const auto steps = [](double epochs, std::uint64_t sequences) {
    TrainSettings s;
    s.epochs = epochs;
    s.batch_size = 8;
    fill_in_by_data(s, sequences);
    return s.max_steps;
  };
  EXPECT_EQ(steps(3, 80), 30);
  EXPECT_EQ(steps(1, 81), 11);
  EXPECT_EQ(steps(0.5, 80), 5);
  EXPECT_EQ(steps(0.001, 80), 1);
}

TEST(DefaultsTest, WarmUpDecayEvaluationsAndLinesAreSharesOfTheSteps) {
  TrainSettings s;
  s.max_steps = 200;
  s.eval_share = 0.1;
  fill_in_by_data(s, 1000);
  EXPECT_EQ(s.warmup_steps, 6);
  EXPECT_EQ(s.decay_steps, 20);
  EXPECT_EQ(s.eval_every, 20);
  EXPECT_EQ(s.log_every, 10);
  TrainSettings none;
  none.max_steps = 0;
  fill_in_by_data(none, 1000);
  EXPECT_EQ(none.warmup_steps, 0);
  EXPECT_EQ(none.eval_every, 0) << "nothing to evaluate on";
}

}  // namespace
}  // namespace rp
