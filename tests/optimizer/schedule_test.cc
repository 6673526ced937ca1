#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>

#include "roundpipe/error.h"
#include "roundpipe/optimizer.h"

namespace rp {
namespace {

constexpr auto kConstant = LearningRateSchedule::kConstant;
constexpr auto kLinear = LearningRateSchedule::kLinear;
constexpr auto kCosine = LearningRateSchedule::kCosine;
constexpr auto kStable = LearningRateSchedule::kWarmupStableDecay;

TEST(LearningRateTest, RisesLinearlyOverTheWarmUp) {
  for (const auto schedule : {kConstant, kLinear, kCosine, kStable}) {
    const LearningRate rate{
        .schedule = schedule, .peak = 0.5, .minimum = 0.125, .warmup_steps = 4, .decay_steps = 10, .max_steps = 100};
    EXPECT_EQ(rate.at(1), 0.125);
    EXPECT_EQ(rate.at(2), 0.25);
    EXPECT_EQ(rate.at(3), 0.375);
    EXPECT_EQ(rate.at(4), 0.5);
    EXPECT_EQ(rate.at(5), 0.5) << "the fall begins at the peak";
  }
}

TEST(LearningRateTest, StaysIfItIsConstant) {
  const LearningRate rate{.peak = 1e-3, .warmup_steps = 4, .max_steps = 10};
  EXPECT_EQ(rate.at(5), 1e-3);
  EXPECT_EQ(rate.at(1000), 1e-3);
}

TEST(LearningRateTest, FallsAlongALineToTheMinimum) {
  const LearningRate rate{.schedule = kLinear, .peak = 1.0, .warmup_steps = 20, .max_steps = 100};
  EXPECT_EQ(rate.at(21), 1.0);
  EXPECT_EQ(rate.at(41), 0.75);
  EXPECT_EQ(rate.at(61), 0.5);
  EXPECT_EQ(rate.at(101), 0.0);
  EXPECT_EQ(rate.at(200), 0.0);
  const LearningRate bounded{.schedule = kLinear, .peak = 1.0, .minimum = 0.5, .max_steps = 4};
  EXPECT_EQ(bounded.at(1), 1.0);
  EXPECT_EQ(bounded.at(3), 0.75);
  EXPECT_EQ(bounded.at(5), 0.5);
}

TEST(LearningRateTest, FallsAsHalfACosine) {
  const LearningRate rate{.schedule = kCosine, .peak = 1.0, .warmup_steps = 20, .max_steps = 100};
  EXPECT_EQ(rate.at(21), 1.0);
  EXPECT_DOUBLE_EQ(rate.at(41), 0.5 + std::sqrt(0.125));
  EXPECT_DOUBLE_EQ(rate.at(61), 0.5);
  EXPECT_DOUBLE_EQ(rate.at(81), 0.5 - std::sqrt(0.125));
  EXPECT_EQ(rate.at(101), 0.0);
  for (std::int64_t step = 21; step < 101; ++step) EXPECT_GT(rate.at(step), rate.at(step + 1));
}

TEST(LearningRateTest, StaysAndFallsInTheLastSteps) {
  const LearningRate rate{
      .schedule = kStable, .peak = 1.0, .minimum = 0.2, .warmup_steps = 5, .decay_steps = 4, .max_steps = 20};
  EXPECT_EQ(rate.at(6), 1.0);
  EXPECT_EQ(rate.at(17), 1.0);
  EXPECT_DOUBLE_EQ(rate.at(18), 0.8);
  EXPECT_DOUBLE_EQ(rate.at(20), 0.4);
  EXPECT_EQ(rate.at(21), 0.2);
}

TEST(LearningRateTest, DecayStepsThatTheWarmUpTakesAreNotThere) {
  const LearningRate rate{.schedule = kStable, .peak = 1.0, .warmup_steps = 6, .decay_steps = 100, .max_steps = 10};
  EXPECT_EQ(rate.at(7), 1.0);
  EXPECT_EQ(rate.at(9), 0.5);
}

TEST(LearningRateTest, TheLastStepTrainsWhateverTheSchedule) {
  for (const auto schedule : {kConstant, kLinear, kCosine, kStable}) {
    for (const std::int64_t max_steps : {1, 2, 3, 1000}) {
      for (const std::int64_t warmup_steps : {std::int64_t{0}, std::int64_t{1}, max_steps}) {
        const LearningRate rate{
            .schedule = schedule, .peak = 2.0, .warmup_steps = warmup_steps, .decay_steps = 2, .max_steps = max_steps};
        EXPECT_GT(rate.at(max_steps), 0.0) << max_steps << " steps, " << warmup_steps << " of warm-up";
        EXPECT_LE(rate.at(max_steps), 2.0);
      }
    }
  }
}

TEST(LearningRateTest, RefusesImpossibleNumbers) {
  EXPECT_THROW(static_cast<void>(LearningRate{}.at(0)), Error);
  EXPECT_THROW(static_cast<void>(LearningRate{.warmup_steps = -1}.at(1)), Error);
  EXPECT_THROW(static_cast<void>(LearningRate{.decay_steps = -1}.at(1)), Error);
  EXPECT_THROW(static_cast<void>(LearningRate{.peak = 1.0, .minimum = 2.0}.at(1)), Error);
  EXPECT_THROW(static_cast<void>(LearningRate{.peak = 1.0, .minimum = -1.0}.at(1)), Error);
}

}  // namespace
}  // namespace rp
