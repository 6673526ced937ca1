#include "scheduler/partition.h"

#include <gtest/gtest.h>

#include <random>

namespace rp {
namespace {

constexpr std::uint64_t kNoLimit = UINT64_MAX;

TEST(BalancedPlan, OneWorkerRunsEverythingInOneFusedStageWithoutRecompute) {
  const std::vector<LayerCost> layers(8, {1.0, 2.0, 1});
  EXPECT_EQ(balanced_plan(layers, 1, kNoLimit), (Plan{{}, 0, {}}));
}

TEST(BalancedPlan, AMemoryLimitCutsStages) {
  const std::vector<LayerCost> layers(8, {1.0, 2.0, 100});
  const Plan plan = balanced_plan(layers, 1, 200);
  for (const LayerRange& range : plan.forward) EXPECT_LE(range.end - range.first, 2);
  for (const LayerRange& range : plan.backward) EXPECT_LE(range.end - range.first, 2);
  EXPECT_GE(plan.fused_start, 6);
}

TEST(BalancedPlan, LayersThatCostNothingStillMakeAPlan) {
  EXPECT_NO_THROW((void)balanced_plan(std::vector<LayerCost>(5), 3, kNoLimit));
  EXPECT_NO_THROW((void)balanced_plan(std::vector<LayerCost>(1), 8, kNoLimit));
}

TEST(BalancedPlan, AnyCostsMakeAValidPlanThatKeepsTheLimit) {
  std::mt19937 random(7);
  for (int run = 0; run < 300; ++run) {
    std::vector<LayerCost> layers(1 + random() % 40);
    std::uint64_t largest = 0;
    for (LayerCost& layer : layers) {
      layer = {static_cast<double>(random() % 100), static_cast<double>(random() % 100), random() % 50};
      largest = std::max(largest, layer.bytes);
    }
    const std::uint64_t limit = largest + random() % 100;
    const Plan plan = balanced_plan(layers, 1 + static_cast<int>(random() % 8), limit);
    validate_plan(plan, static_cast<int>(layers.size()));
    const auto bytes_of = [&](LayerRange range) {
      std::uint64_t bytes = 0;
      for (int i = range.first; i < range.end; ++i) bytes += layers[static_cast<std::size_t>(i)].bytes;
      return bytes;
    };
    for (const auto& stages : {plan.forward, plan.backward}) {
      for (const LayerRange& range : stages) EXPECT_LE(bytes_of(range), limit);
    }
    EXPECT_LE(bytes_of({plan.fused_start, static_cast<int>(layers.size())}), limit);
  }
}

TEST(LayerTimes, TheFirstRoundIsDroppedAndLaterOnesAreSmoothed) {
  LayerTimes times(1);
  times.add({1000}, {1000});
  times.add({100}, {200});
  EXPECT_DOUBLE_EQ(times.forward(0), 100);
  times.add({200}, {200});
  EXPECT_DOUBLE_EQ(times.forward(0), 110);
  EXPECT_DOUBLE_EQ(times.backward(0), 200);
}

}  // namespace
}  // namespace rp
