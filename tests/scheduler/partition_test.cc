#include "scheduler/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "scheduler/layer_times.h"

namespace rp {
namespace {

constexpr std::uint64_t kNoLimit = UINT64_MAX;

Plan balanced_plan(const std::vector<PartitionLayer>& layers, int num_workers, std::uint64_t max_stage_bytes,
                   PlanKind kind = PlanKind::kFused, double threshold = 0) {
  return balanced_plans({{.kind = kind, .layers = layers, .max_stage_bytes = max_stage_bytes}}, num_workers, threshold)
      .front();
}

const PartitionLayer kLayer{.forward = 1, .recompute = 1, .backward = 2, .bytes = 100};

TEST(BalancedPlans, OneWorkerRunsEverythingInOneFusedStageWithoutRecompute) {
  EXPECT_EQ(balanced_plan(std::vector<PartitionLayer>(8, kLayer), 1, kNoLimit), (Plan{{}, 0, {}}));
}

TEST(BalancedPlans, AMemoryLimitCutsStages) {
  const Plan plan = balanced_plan(std::vector<PartitionLayer>(8, kLayer), 1, 200);
  for (const LayerRange& range : plan.forward) EXPECT_LE(range.end - range.first, 2);
  for (const LayerRange& range : plan.backward) EXPECT_LE(range.end - range.first, 2);
  EXPECT_GE(plan.fused_start, 6);
}

TEST(BalancedPlans, KeepToLimitsOfTheirStages) {
  PlanRequest request{.kind = PlanKind::kFused, .layers = std::vector<PartitionLayer>(8, kLayer)};
  request.limits = {.forward = {3, 3, 3, 6, 6, 6, 7, 9}, .backward = {2, 2, 4, 4, 6, 6, 7, 9}, .least_fused_start = 6};
  const Plan plan = balanced_plans({request}, 1, 0).front();
  for (const LayerRange& range : plan.forward) EXPECT_LE(range.end, request.limits.forward[range.first]);
  for (const LayerRange& range : plan.backward) EXPECT_LE(range.end, request.limits.backward[range.first]);
  EXPECT_GE(plan.fused_start, 6);
  EXPECT_LT(plan.num_stages(8), 15) << "longer than one layer where they may be";
}

TEST(BalancedPlans, WithoutALossHaveNoFusedStageAndInferenceNoBackward) {
  const std::vector<PartitionLayer> layers(8, kLayer);
  const Plan train = balanced_plan(layers, 4, kNoLimit, PlanKind::kTrain);
  EXPECT_EQ(kind_of(train, 8), PlanKind::kTrain);
  EXPECT_LT(train.forward.size(), train.backward.size()) << "a backward is longer";
  const Plan infer = balanced_plan(layers, 3, kNoLimit, PlanKind::kInfer);
  EXPECT_EQ(kind_of(infer, 8), PlanKind::kInfer);
  EXPECT_TRUE(infer.backward.empty());
}

double longest_stage(const Plan& plan, const std::vector<PartitionLayer>& layers) {
  const auto sum = [&](LayerRange range, auto cost) {
    double total = 0;
    for (int layer = range.first; layer < range.end; ++layer) total += cost(layers[layer]);
    return total;
  };
  double longest = sum({plan.fused_start, static_cast<int>(layers.size())},
                       [](const PartitionLayer& c) { return c.forward + c.backward; });
  for (const LayerRange& range : plan.forward) {
    longest = std::max(longest, sum(range, [](const PartitionLayer& c) { return c.forward; }));
  }
  for (const LayerRange& range : plan.backward) {
    longest = std::max(longest, sum(range, [](const PartitionLayer& c) { return c.recompute + c.backward; }));
  }
  return longest;
}

// Workers that run a stage of one model should not wait for a longer stage of the other.
TEST(BalancedPlans, OfModelsThatShareTheWorkersBeatThePlansThatEachWouldHaveAlone) {
  const std::vector<PartitionLayer> teacher(12, {.forward = 7}), student(6, kLayer);
  const auto cost = [&](const Plan& of_teacher, const Plan& of_student) {
    const int num_stages = of_teacher.num_stages(12) + of_student.num_stages(6);
    return std::max(4, num_stages) * std::max(longest_stage(of_teacher, teacher), longest_stage(of_student, student));
  };
  const auto together = balanced_plans(
      {{.kind = PlanKind::kInfer, .layers = teacher}, {.kind = PlanKind::kFused, .layers = student}}, 4, 0);
  const double alone = cost(balanced_plan(teacher, 4, kNoLimit, PlanKind::kInfer), balanced_plan(student, 4, kNoLimit));
  EXPECT_LT(cost(together[0], together[1]), alone);
}

TEST(BalancedPlans, OfFewerStagesThanAreAskedForCostAsIfTheyHadThem) {
  const std::vector<PartitionLayer> layers(12, kLayer);
  EXPECT_EQ(balanced_plan(layers, 1, kNoLimit, PlanKind::kInfer).forward.size(), 1U);
  for (const int min_stages : {2, 3, 5, 12}) {
    EXPECT_GE(balanced_plan(layers, min_stages, kNoLimit, PlanKind::kInfer).forward.size(),
              static_cast<std::size_t>(min_stages));
  }
}

TEST(BalancedPlans, KeepStagesUnderTheThreshold) {
  std::vector<PartitionLayer> layers(10, {.forward = 1});
  layers[3].forward = 2;
  EXPECT_EQ(balanced_plan(layers, 1, kNoLimit, PlanKind::kInfer).forward.size(), 1U);
  for (const LayerRange& range : balanced_plan(layers, 1, kNoLimit, PlanKind::kInfer, 1.5).forward) {
    EXPECT_LE(range.end - range.first, 3);
  }
  EXPECT_GE(balanced_plan(layers, 1, kNoLimit, PlanKind::kInfer, 1.0).forward.size(), 6U);
}

TEST(BalancedPlans, OfLayersThatCostNothingAreStillPlans) {
  EXPECT_NO_THROW((void)balanced_plan(std::vector<PartitionLayer>(5), 3, kNoLimit));
  EXPECT_NO_THROW((void)balanced_plan(std::vector<PartitionLayer>(1), 8, kNoLimit));
}

TEST(BalancedPlans, AreValidAndKeepTheLimitForAnyCosts) {
  std::mt19937 random(7);
  for (int run = 0; run < 300; ++run) {
    std::vector<PlanRequest> models(1 + random() % 3);
    for (PlanRequest& model : models) {
      model.kind = static_cast<PlanKind>(random() % 3);
      model.layers.resize(1 + random() % 30);
      std::uint64_t largest = 0;
      for (PartitionLayer& layer : model.layers) {
        layer = {static_cast<double>(random() % 100), static_cast<double>(random() % 100),
                 static_cast<double>(random() % 100), random() % 50};
        largest = std::max(largest, layer.bytes);
      }
      model.max_stage_bytes = largest + random() % 100;
    }
    const double threshold = random() % 2 == 0 ? 0 : 1.1;
    const std::vector<Plan> plans = balanced_plans(models, 1 + static_cast<int>(random() % 8), threshold);
    for (std::size_t i = 0; i < models.size(); ++i) {
      const int num_layers = static_cast<int>(models[i].layers.size());
      validate_plan(plans[i], num_layers);
      if (models[i].kind != PlanKind::kTrain) {
        EXPECT_EQ(kind_of(plans[i], num_layers), models[i].kind);
      }
      const auto bytes_of = [&](LayerRange range) {
        std::uint64_t bytes = 0;
        for (int layer = range.first; layer < range.end; ++layer) bytes += models[i].layers[layer].bytes;
        return bytes;
      };
      for (const auto& stages : {plans[i].forward, plans[i].backward}) {
        for (const LayerRange& range : stages) EXPECT_LE(bytes_of(range), models[i].max_stage_bytes);
      }
      EXPECT_LE(bytes_of({plans[i].fused_start, num_layers}), models[i].max_stage_bytes);
    }
  }
}

TEST(LayerTimes, TheFirstRoundIsDroppedAndLaterOnesAreSmoothed) {
  LayerTimes times(2);
  times.add({{.forward = 1000, .recompute = 0, .backward = 1000}, {}});
  times.add({{.forward = 100, .recompute = 0, .backward = 200}, {}});
  EXPECT_DOUBLE_EQ(times.times()[0].forward, 100);
  times.add({{.forward = 200}, {}});
  EXPECT_DOUBLE_EQ(times.times()[0].forward, 110);
  EXPECT_DOUBLE_EQ(times.times()[0].backward, 200) << "an evaluation tells nothing of it";
  EXPECT_EQ(times.num_forwards(), 3);
  EXPECT_EQ(times.num_backwards(), 2);
  EXPECT_EQ(times.times()[1].forward, 0) << "it never ran";
}

}  // namespace
}  // namespace rp
