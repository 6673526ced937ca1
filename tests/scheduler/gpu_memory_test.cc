#include "scheduler/gpu_memory.h"

#include <gtest/gtest.h>

#include <random>

#include "scheduler/host_memory.h"
#include "tests/common/expect_refusal.h"

namespace rp {
namespace {

// The sizes are chosen so that a sum shows which of them it contains.
LayerCost layer_of(std::uint64_t weights) {
  LayerCost cost;
  cost.weight_bytes = weights;
  cost.gradient_bytes = weights;
  cost.gradient_elements = cost.trained_elements = weights / 2;
  cost.input_bytes = 10;
  cost.output_bytes = 20;
  cost.saved_bytes = 100;
  cost.forward_workspace_bytes = 7;
  cost.backward_workspace_bytes = 9;
  return cost;
}

std::vector<LayerCost> random_layers(std::mt19937_64& random) {
  std::vector<LayerCost> costs;
  const auto draw = [&](std::uint64_t most) { return std::uniform_int_distribution<std::uint64_t>(1, most)(random); };
  for (std::uint64_t i = 0, count = 2 + draw(30); i < count; ++i) {
    LayerCost& cost = costs.emplace_back(layer_of(2 * draw(1000)));
    cost.saved_bytes = draw(5000);
    cost.backward_workspace_bytes = draw(3000);
    cost.input_bytes = cost.output_bytes = draw(50);
  }
  return costs;
}

TEST(GpuMemory, AForwardStageHoldsWeightsAndBoundariesOnly) {
  const std::vector<LayerCost> costs = {layer_of(100), layer_of(200), layer_of(400)};
  const GpuMemory memory = stage_memory(costs, {0, 2}, Phase::kForward, RecomputeGrain::kStage);
  EXPECT_EQ(memory, (GpuMemory{.weights = 600, .inputs = 20, .outputs = 40, .workspace = 7}));
  EXPECT_EQ(memory.total(), 667U);
}

TEST(GpuMemory, AForwardStageGivesAllItsBoundariesWhereEachLayerRecomputes) {
  const std::vector<LayerCost> costs = {layer_of(100), layer_of(200), layer_of(400)};
  EXPECT_EQ(stage_memory(costs, {0, 2}, Phase::kForward, RecomputeGrain::kLayer).outputs, 80U);
}

TEST(GpuMemory, ABackwardStageHoldsGradientsAndWhatItsForwardSaved) {
  const std::vector<LayerCost> costs = {layer_of(100), layer_of(200), layer_of(400)};
  EXPECT_EQ(stage_memory(costs, {0, 2}, Phase::kBackward, RecomputeGrain::kStage), (GpuMemory{.weights = 600,
                                                                                              .accumulators = 600,
                                                                                              .gradients = 600,
                                                                                              .inputs = 60,
                                                                                              .outputs = 20,
                                                                                              .saved = 200,
                                                                                              .workspace = 9}));
  EXPECT_EQ(stage_memory(costs, {0, 2}, Phase::kBackward, RecomputeGrain::kLayer), (GpuMemory{.weights = 600,
                                                                                              .accumulators = 600,
                                                                                              .gradients = 600,
                                                                                              .inputs = 80,
                                                                                              .outputs = 20,
                                                                                              .saved = 100,
                                                                                              .workspace = 9}))
      << "layer by layer: every layer's input, and one layer's activations";
  EXPECT_EQ(stage_memory(costs, {1, 3}, Phase::kFused, RecomputeGrain::kLayer).saved, 200U)
      << "a fused stage recomputes nothing";
}

TEST(GpuMemory, APlanNeedsTheLargestBufferOfEachKind) {
  std::vector<LayerCost> costs = {layer_of(100), layer_of(200), layer_of(400)};
  costs[2].saved_bytes = 5000;
  const Plan plan{.forward = {{0, 2}}, .fused_start = 2, .backward = {{1, 2}, {0, 1}}};
  const GpuMemory memory = gpu_memory(costs, plan, RecomputeGrain::kStage);
  EXPECT_EQ(memory.weights, 800U) << "the head's";
  EXPECT_EQ(memory.saved, 5000U);
  EXPECT_EQ(memory.outputs, 40U) << "the forward stage's";
}

TEST(GpuMemory, APlanThatDoesNotFitIsSaidSoWithItsNeed) {
  const std::vector<LayerCost> costs(3, layer_of(100 << 20));
  const Plan plan{.forward = {{0, 2}}, .fused_start = 2, .backward = {{1, 2}, {0, 1}}};
  const std::uint64_t need = gpu_memory(costs, plan, RecomputeGrain::kStage).total();
  EXPECT_EQ(too_large_text(costs, plan, need, RecomputeGrain::kStage), std::nullopt);
  const std::string text = too_large_text(costs, plan, need - 1, RecomputeGrain::kStage).value();
  for (const char* part :
       {"800 MiB at least (weights of two stages 400 MiB, fp32", "a worker has 800 MiB", "shorter stages"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

TEST(StageLimits, EveryPlanWithinThemFitsTheGpu) {
  std::mt19937_64 random(7);
  int longer_than_one = 0;
  for (int run = 0; run < 300; ++run) {
    const std::vector<LayerCost> costs = random_layers(random);
    const int head = static_cast<int>(costs.size()) - 1;
    Plan single;
    single.fused_start = head;
    for (int layer = 0; layer < head; ++layer) single.forward.push_back({layer, layer + 1});
    for (int layer = head; layer-- > 0;) single.backward.push_back({layer, layer + 1});
    const RecomputeGrain recompute = run % 2 == 0 ? RecomputeGrain::kStage : RecomputeGrain::kLayer;
    const auto least = static_cast<double>(gpu_memory(costs, single, recompute).total());
    const double capacity = least * std::uniform_real_distribution<double>(1, 4)(random);
    const StageLimits limits = stage_limits(costs, capacity, recompute, 3);
    // A plan of the longest stages of each kind, from each start: one of the plans that need the
    // maximum of memory.
    for (int start = 0; start < head; ++start) {
      Plan plan;
      plan.fused_start = std::max(limits.least_fused_start, std::min(head, start + 1));
      for (int layer = 0; layer < plan.fused_start;) {
        const int end = layer < start ? layer + 1 : std::min(plan.fused_start, limits.forward[layer]);
        plan.forward.push_back({layer, end});
        layer = end;
      }
      for (int layer = 0; layer < plan.fused_start;) {
        const int end = layer < start / 2 ? layer + 1 : std::min(plan.fused_start, limits.backward[layer]);
        plan.backward.insert(plan.backward.begin(), {layer, end});
        longer_than_one += end - layer > 1 ? 1 : 0;
        layer = end;
      }
      validate_plan(plan, head + 1);
      EXPECT_LE(static_cast<double>(gpu_memory(costs, plan, recompute).total()), capacity)
          << "run " << run << ", start " << start;
    }
  }
  EXPECT_GT(longer_than_one, 1000) << "limits that admit single layers only prove nothing";
}

TEST(StageLimits, AreOfRoundsWithoutAFusedStageToo) {
  const std::vector<LayerCost> costs(6, layer_of(100));
  const auto of = [&](PlanKind kind, double capacity, const GpuMemory& beside = {}) {
    return stage_limits(costs, capacity, RecomputeGrain::kStage, 2, kind, beside);
  };
  EXPECT_EQ(of(PlanKind::kTrain, 1e6).forward.front(), 6) << "the head, too";
  EXPECT_EQ(of(PlanKind::kTrain, 1e6).backward.front(), 6);
  const GpuMemory single = stage_memory(costs, {0, 1}, Phase::kForward, RecomputeGrain::kStage);
  const auto least = static_cast<double>(single.total());
  EXPECT_EQ(of(PlanKind::kInfer, least).forward, (std::vector<int>{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(of(PlanKind::kInfer, least + 400).forward.front(), 3) << "weights of two stages and nothing else";
  // Memory of other plans is shared if it has the same purpose, and missing if it has not.
  const GpuMemory twice{.weights = 2 * single.weights}, other{.gradients = 200};
  EXPECT_EQ(of(PlanKind::kInfer, least + 200, twice).forward.front(), 2);
  EXPECT_EQ(of(PlanKind::kInfer, least + 400, other).forward.front(), 2);
  for (const PlanKind kind : {PlanKind::kTrain, PlanKind::kInfer}) {
    expect_error(ExitCode::kNoResource, {"stages of one layer"}, [&] { (void)of(kind, 100); });
    const StageLimits limits = of(kind, 2000);
    EXPECT_LE(memory_within(costs, limits, RecomputeGrain::kStage, kind).total(), 2000U);
  }
}

TEST(StageLimits, TheyGrowWithTheMemory) {
  const std::vector<LayerCost> costs(12, layer_of(100));
  const auto least =
      static_cast<double>(stage_memory(costs, {11, 12}, Phase::kFused, RecomputeGrain::kStage).total() + 60);
  const StageLimits small = stage_limits(costs, least, RecomputeGrain::kStage, 2),
                    large = stage_limits(costs, 100 * least, RecomputeGrain::kStage, 2);
  EXPECT_EQ(small.backward.front(), 1);
  EXPECT_EQ(small.least_fused_start, 11);
  EXPECT_EQ(large.forward.front(), 11);
  EXPECT_EQ(large.backward.front(), 11);
  EXPECT_EQ(large.least_fused_start, 9) << "two layers in addition to the head were allowed";
  EXPECT_EQ(large.backward.back(), 12);
  const StageLimits middle = stage_limits(costs, 3 * least, RecomputeGrain::kStage, 2);
  EXPECT_GE(middle.forward.front(), middle.backward.front());
}

TEST(StageLimits, AreWiderByLayerAndTheSameWhereOnlyStagesOfOneLayerFit) {
  std::mt19937_64 random(11);
  for (int run = 0; run < 100; ++run) {
    const std::vector<LayerCost> costs = random_layers(random);
    for (int layer = 0; layer + 1 < static_cast<int>(costs.size()); ++layer) {
      EXPECT_EQ(stage_memory(costs, {layer, layer + 1}, Phase::kBackward, RecomputeGrain::kStage),
                stage_memory(costs, {layer, layer + 1}, Phase::kBackward, RecomputeGrain::kLayer));
    }
  }
  std::vector<LayerCost> costs(12, layer_of(100));
  for (LayerCost& cost : costs) cost.saved_bytes = 10'000;
  const auto capacity =
      3.0 * static_cast<double>(stage_memory(costs, {0, 1}, Phase::kBackward, RecomputeGrain::kStage).total());
  const StageLimits by_stage = stage_limits(costs, capacity, RecomputeGrain::kStage, 0),
                    by_layer = stage_limits(costs, capacity, RecomputeGrain::kLayer, 0);
  EXPECT_EQ(by_stage.backward.front(), 3);
  EXPECT_EQ(by_layer.backward.front(), 11) << "one layer's activations at once";
}

TEST(StageLimits, HoldAPlanWhereAStageCouldBeLongerInWiderOnes) {
  const StageLimits limits{.forward = {3, 3, 4, 4, 6}, .backward = {2, 3, 4, 4, 6}, .least_fused_start = 3};
  StageLimits wider = limits;
  const Plan at_limits{.forward = {{0, 3}, {3, 4}}, .fused_start = 4, .backward = {{2, 4}, {0, 2}}};
  const Plan below{.forward = {{0, 2}, {2, 4}}, .fused_start = 4, .backward = {{3, 4}, {1, 3}, {0, 1}}};
  EXPECT_FALSE(is_held(at_limits, limits, wider)) << "nothing is wider";
  wider.backward[0] = 4;
  EXPECT_TRUE(is_held(at_limits, limits, wider)) << "the stage of layers 0 and 1";
  EXPECT_FALSE(is_held(below, limits, wider)) << "a stage that is as short as it was chosen";
  wider = limits;
  wider.forward[0] = 4;
  EXPECT_TRUE(is_held(at_limits, limits, wider));
  EXPECT_FALSE(is_held(below, limits, wider));
  wider = limits;
  wider.least_fused_start = 2;
  EXPECT_FALSE(is_held(at_limits, limits, wider)) << "the fused stage is not at its limit";
  EXPECT_TRUE(
      is_held({.forward = {{0, 1}, {1, 3}}, .fused_start = 3, .backward = {{2, 3}, {1, 2}, {0, 1}}}, limits, wider));
}

TEST(StageLimits, ALayerThatDoesNotFitIsNamedWithItsNeed) {
  std::vector<LayerCost> costs(5, layer_of(100));
  costs[3] = layer_of(100'000);
  expect_error(ExitCode::kNoResource, {"layer 3", "weights of two stages 195 KiB", "would help"},
               [&] { (void)stage_limits(costs, 10'000, RecomputeGrain::kStage, 2); });
}

TEST(HostMemory, BytesAParameterAreThoseOfTheDocumentation) {
  LayerCost cost;
  cost.trained_elements = cost.gradient_elements = 1000;
  cost.gradient_bytes = 2000;
  const std::vector<LayerCost> costs = {cost, LayerCost{.frozen_bytes = 1000}};
  const Plan plan{.forward = {{0, 1}}, .fused_start = 1, .backward = {{0, 1}}};
  const auto bytes = [&](const HostSettings& settings) { return host_memory(costs, plan, settings).total() - 1000; };
  EXPECT_EQ(bytes({}), 16'000U);
  EXPECT_EQ(bytes({.asynchronous = true}), 18'000U);
  EXPECT_EQ(bytes({.rounds_per_step = 2}), 20'000U);
  EXPECT_EQ(bytes({.num_moments = 0}), 8'000U);
  std::vector<LayerCost> wide = costs;
  wide[0].gradient_bytes = 4000;
  EXPECT_EQ(host_memory(wide, plan, {.element_bytes = 4}).total(), 16'000U + 1'000);
  EXPECT_EQ(host_memory(wide, plan, {.element_bytes = 4, .asynchronous = true}).total(), 20'000U + 1'000);
  std::vector<LayerCost> corrected = costs;
  corrected[0].correction_bytes = 40;
  EXPECT_EQ(host_memory(corrected, plan, {}).total(), 16'000U + 1'000 + 40) << "neither masters nor moments";
  EXPECT_EQ(host_memory(corrected, plan, {.asynchronous = true}).total(), 18'000U + 1'000 + 80);
}

// Masters, moments and sums of the elements that a node owns; all weights and gradients; buffers for
// the gradients of the others.
TEST(HostMemory, OfSeveralNodesHasThePartThatEachOwns) {
  constexpr std::uint64_t kElements = 1000 * kChunkElements;
  LayerCost cost;
  cost.trained_elements = cost.gradient_elements = kElements;
  cost.gradient_bytes = 2 * kElements;
  const std::vector<LayerCost> costs(3, cost);
  const Plan plan{.forward = {{0, 2}}, .fused_start = 2, .backward = {{0, 2}}};
  const auto memory_of = [&](int node, int num_nodes) {
    return host_memory(costs, plan, {.rounds_per_step = 7, .place = {.node = node, .num_nodes = num_nodes}});
  };
  const HostMemory alone = memory_of(0, 1);
  EXPECT_EQ(alone.optimizer_state, 16 * 3 * kElements);
  EXPECT_EQ(alone.received_gradients, 0U);
  for (const int num_nodes : {2, 3, 7}) {
    std::uint64_t state = 0;
    for (int node = 0; node < num_nodes; ++node) {
      const HostMemory memory = memory_of(node, num_nodes);
      EXPECT_EQ(memory.weights, alone.weights);
      EXPECT_EQ(memory.gradients, alone.gradients);
      EXPECT_NEAR(static_cast<double>(memory.optimizer_state), 16.0 * 3 * kElements / num_nodes,
                  16 * 3 * kChunkElements);
      EXPECT_EQ(memory.received_gradients, static_cast<std::uint64_t>(num_nodes - 1) * 16 << 20);
      state += memory.optimizer_state;
    }
    EXPECT_EQ(state, alone.optimizer_state) << "each element has one owner";
  }
  // Of 1000 chunks, each of 500 nodes owns two: pieces are as short as that.
  EXPECT_EQ(memory_of(0, 500).received_gradients, 499U * 2 * 2 * 2 * kChunkElements);
}

TEST(HostMemory, ActivationsOfTwoRoundsAreThoseBetweenStages) {
  std::vector<LayerCost> costs(5, LayerCost{.input_bytes = 10});
  costs[0].input_bytes = 1;
  const Plan plan{.forward = {{0, 2}, {2, 4}}, .fused_start = 4, .backward = {{1, 4}, {0, 1}}};
  // The inputs of layers 0, 1, 2 and 4, and two gradients, for three microbatches.
  EXPECT_EQ(host_memory(costs, plan, {.num_microbatches = 3}).activations, 2U * 3 * (1 + 30 + 20));
  EXPECT_EQ(host_memory(costs, plan, {.recompute = RecomputeGrain::kLayer, .num_microbatches = 3}).activations,
            2U * 3 * (1 + 40 + 20));
}

}  // namespace
}  // namespace rp
