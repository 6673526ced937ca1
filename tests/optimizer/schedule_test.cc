#include <gtest/gtest.h>

#include <cmath>

#include "roundpipe/error.h"
#include "roundpipe/optimizer.h"

namespace rp {
namespace {

constexpr auto kConstant = LearningRateSchedule::kConstant;
constexpr auto kCosine = LearningRateSchedule::kCosine;

TEST(Schedule, LinearFallsAlongALineToZeroAtTheLastStep) {
  constexpr auto kLinear = LearningRateSchedule::kLinear;
  EXPECT_EQ(scheduled_learning_rate(kLinear, 1.0, 10, 20, 100), 0.5);
  EXPECT_EQ(scheduled_learning_rate(kLinear, 1.0, 20, 20, 100), 1.0);
  EXPECT_EQ(scheduled_learning_rate(kLinear, 1.0, 40, 20, 100), 0.75);
  EXPECT_EQ(scheduled_learning_rate(kLinear, 1.0, 100, 20, 100), 0.0);
  EXPECT_EQ(scheduled_learning_rate(kLinear, 1.0, 200, 20, 100), 0.0);
}

TEST(Schedule, WarmUpRisesLinearlyAndEndsAtTheFullRate) {
  for (const auto schedule : {kConstant, kCosine}) {
    EXPECT_EQ(scheduled_learning_rate(schedule, 0.5, 1, 4, 100), 0.125);
    EXPECT_EQ(scheduled_learning_rate(schedule, 0.5, 2, 4, 100), 0.25);
    EXPECT_EQ(scheduled_learning_rate(schedule, 0.5, 3, 4, 100), 0.375);
    EXPECT_EQ(scheduled_learning_rate(schedule, 0.5, 4, 4, 100), 0.5);
  }
}

TEST(Schedule, ConstantStaysAtTheFullRateForEver) {
  EXPECT_EQ(scheduled_learning_rate(kConstant, 1e-3, 1, 0, 10), 1e-3);
  EXPECT_EQ(scheduled_learning_rate(kConstant, 1e-3, 5, 4, 10), 1e-3);
  EXPECT_EQ(scheduled_learning_rate(kConstant, 1e-3, 1000, 4, 10), 1e-3);
}

TEST(Schedule, CosineFallsFromTheEndOfWarmUpToZeroAtTheLastStep) {
  EXPECT_EQ(scheduled_learning_rate(kCosine, 1.0, 60, 20, 100), 0.5);
  EXPECT_DOUBLE_EQ(scheduled_learning_rate(kCosine, 1.0, 40, 20, 100), 0.5 + std::sqrt(0.125));
  EXPECT_DOUBLE_EQ(scheduled_learning_rate(kCosine, 1.0, 80, 20, 100), 0.5 - std::sqrt(0.125));
  EXPECT_EQ(scheduled_learning_rate(kCosine, 1.0, 100, 20, 100), 0.0);
  EXPECT_EQ(scheduled_learning_rate(kCosine, 1.0, 101, 20, 100), 0.0);
  double last = 1.0;
  for (int step = 21; step <= 100; ++step) {
    const double rate = scheduled_learning_rate(kCosine, 1.0, step, 20, 100);
    EXPECT_LT(rate, last);
    last = rate;
  }
}

TEST(Schedule, CosineWithoutWarmUpFallsFromTheFirstStep) {
  EXPECT_EQ(scheduled_learning_rate(kCosine, 2.0, 1, 0, 2), 1.0);
  EXPECT_EQ(scheduled_learning_rate(kCosine, 2.0, 2, 0, 2), 0.0);
}

TEST(Schedule, WarmUpThatFillsTheRunLeavesNoCosine) {
  EXPECT_EQ(scheduled_learning_rate(kCosine, 1.0, 10, 10, 10), 1.0);
  EXPECT_EQ(scheduled_learning_rate(kCosine, 1.0, 11, 10, 10), 0.0);
  EXPECT_EQ(scheduled_learning_rate(kCosine, 1.0, 10, 20, 10), 0.5);
}

TEST(Schedule, AStepBelowOneAndANegativeWarmUpAreErrors) {
  EXPECT_THROW(static_cast<void>(scheduled_learning_rate(kConstant, 1.0, 0, 0, 10)), Error);
  EXPECT_THROW(static_cast<void>(scheduled_learning_rate(kCosine, 1.0, 1, -1, 10)), Error);
}

}  // namespace
}  // namespace rp
