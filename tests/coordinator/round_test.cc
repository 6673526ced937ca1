#include "coordinator/rounds/round.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "scheduler/round_schedule.h"
#include "tests/coordinator/random_plan.h"

namespace rp {
namespace {

Catalogue catalogue_of(int num_layers, const std::set<int>& with_buffers) {
  std::vector<LayerRequest> layers(static_cast<std::size_t>(num_layers), LayerRequest{.name = "l"});
  for (const int layer : with_buffers) layers[layer].num_buffers = 1;
  return Catalogue::lay_out(layers, 1, false);
}

// Calls `check` with rounds of all kinds with random plans, and adds the seed to failure messages.
template <typename Check>
void for_random_rounds(Check&& check) {
  for (unsigned seed = 1; seed <= 1000; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&random](int low, int high) {
      return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
    };
    Round round;
    round.num_layers = draw(1, 12);
    round.plan = test::random_plan(random, round.num_layers);
    round.traits.kind = draw(0, 1) == 0 ? RoundKind::kForwardBackward : RoundKind::kForward;
    round.traits.keeps_graph = round.traits.kind == RoundKind::kForward && draw(0, 1) == 1;
    round.traits.keeps_outputs = draw(0, 1) == 1;
    round.traits.grain_layer = draw(0, 1) == 1;
    round.traits.input_gradient = round.traits.has_backward() && draw(0, 3) == 0;
    round.traits.mode = round.traits.has_backward() || draw(0, 1) == 1 ? RoundMode::kTrain : RoundMode::kEvaluate;
    round.first_trained_layer = round.traits.input_gradient ? 0 : draw(0, round.num_layers);
    if (round.traits.kind == RoundKind::kForward) {
      round.plan =
          plan_for(round.traits.keeps_graph ? PlanKind::kTrain : PlanKind::kInfer, round.plan, round.num_layers);
    }
    round.slots = slots_of(round.plan, round.num_layers, round.first_trained_layer);
    std::set<int> with_buffers;
    for (int layer = 0; layer < round.num_layers; ++layer) {
      if (draw(0, 3) == 0) with_buffers.insert(layer);
    }
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << plan_text(round.plan, round.num_layers)
                                    << ", first trained layer " << round.first_trained_layer << ", grain "
                                    << round.traits.grain_layer);
    check(round, catalogue_of(round.num_layers, with_buffers));
  }
}

TEST(Slots, FollowThePlan) {
  const Plan plan = parse_plan("forward 0-1 2 | fused 3-4 | backward 1-2 0", 5);
  const std::vector<std::pair<Phase, LayerRange>> expected = {{Phase::kForward, {0, 2}},
                                                              {Phase::kForward, {2, 3}},
                                                              {Phase::kFused, {3, 5}},
                                                              {Phase::kBackward, {1, 3}},
                                                              {Phase::kBackward, {0, 1}}};
  const std::vector<Slot> slots = slots_of(plan, 5, 0);
  ASSERT_EQ(slots.size(), expected.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    EXPECT_EQ(slots[i].phase, expected[i].first);
    EXPECT_EQ(slots[i].layers, expected[i].second);
  }
}

TEST(Slots, AreTheStagesThatPlansAreSimulatedWith) {
  for_random_rounds([](const Round& round, const Catalogue&) {
    if (kind_of(round.plan, round.num_layers) != PlanKind::kFused) return;
    Workload workload;
    workload.layers.resize(static_cast<std::size_t>(round.num_layers) - 1, {1, 1});
    workload.first_trained_layer = round.first_trained_layer;
    const std::vector<StageWork> stages = stage_works(workload, round.plan);
    ASSERT_EQ(stages.size(), round.slots.size());
    for (std::size_t i = 0; i < stages.size(); ++i) EXPECT_EQ(stages[i].layers, round.slots[i].layers);
  });
}

TEST(Slots, EndTheBackwardAtTheFirstLayerThatIsTrained) {
  const Plan plan = parse_plan("forward 0-1 2 | fused 3-4 | backward 1-2 0", 5);
  ASSERT_EQ(slots_of(plan, 5, 2).size(), 4U);
  EXPECT_EQ(slots_of(plan, 5, 2)[3].layers, (LayerRange{2, 3}));
  EXPECT_EQ(slots_of(plan, 5, 3).size(), 3U) << "no backward stage is left";
}

TEST(Commands, OfAForwardStageSaveWhatTheNextStageAndTheBackwardBeginWith) {
  Round round;
  round.num_layers = 6;
  round.plan = parse_plan("forward 0-3 4 | fused 5 | backward 3-4 2 0-1", 6);
  const auto saved = [&round](LayerRange layers) {
    std::vector<int> boundaries;
    const Command command = command_of(round, {.phase = Phase::kForward, .layers = layers});
    for (int boundary = 0; boundary <= 6; ++boundary) {
      if (command.saves(boundary)) boundaries.push_back(boundary);
    }
    return boundaries;
  };
  EXPECT_EQ(saved({0, 4}), (std::vector<int>{2, 3, 4}));
  EXPECT_EQ(saved({4, 5}), (std::vector<int>{5}));
  round.first_trained_layer = 3;
  EXPECT_EQ(saved({0, 4}), (std::vector<int>{3, 4})) << "nothing for a backward pass that does not take place";
  round.traits.grain_layer = true;
  round.first_trained_layer = 1;
  EXPECT_EQ(saved({0, 4}), (std::vector<int>{1, 2, 3, 4})) << "the input of each layer";
  round.traits.kind = RoundKind::kForward;
  EXPECT_EQ(saved({0, 4}), (std::vector<int>{4}));
  EXPECT_EQ(saved({4, 6}), (std::vector<int>{6}));
}

// Returns the rows that the coordinator places.
std::set<BlockRow> placed_before(const Round& round) {
  std::set<BlockRow> rows = {{BlockKind::kActivation, 0}};
  if (round.traits.kind == RoundKind::kForwardBackward) rows.insert({BlockKind::kArguments, 0});
  if (round.traits.keeps_graph) rows.insert({BlockKind::kGradient, round.num_layers});
  return rows;
}

TEST(Blocks, AreWrittenOnceBeforeTheyAreReadInRoundsOfAllKinds) {
  for_random_rounds([](const Round& round, const Catalogue& catalogue) {
    std::set<BlockRow> there = placed_before(round);
    for (const Slot& slot : round.slots) {
      const Command command = command_of(round, slot);
      for (const BlockRow& row : input_rows(command, catalogue)) {
        // Buffers come from another round.
        EXPECT_TRUE(row.kind == BlockKind::kBuffers || there.contains(row))
            << "kind " << static_cast<int>(row.kind) << ", index " << row.index;
      }
      for (const BlockRow& row : output_rows(command, catalogue)) {
        EXPECT_TRUE(there.insert(row).second) << "kind " << static_cast<int>(row.kind) << ", index " << row.index;
      }
    }
  });
}

TEST(Blocks, AreReadByASlotOrTheCallerInRoundsOfAllKinds) {
  for_random_rounds([](const Round& round, const Catalogue& catalogue) {
    std::set<BlockRow> read;
    std::set<BlockRow> written = placed_before(round);
    for (const Slot& slot : round.slots) {
      const Command command = command_of(round, slot);
      for (const BlockRow& row : input_rows(command, catalogue)) read.insert(row);
      for (const BlockRow& row : output_rows(command, catalogue)) written.insert(row);
    }
    const bool keeps_outputs = round.traits.kind == RoundKind::kForward || round.traits.keeps_outputs;
    if (keeps_outputs) read.insert({BlockKind::kActivation, round.num_layers});
    if (round.traits.input_gradient) read.insert({BlockKind::kGradient, 0});
    if (round.traits.keeps_graph) read.insert({BlockKind::kGradient, round.num_layers});  // also if no layer is trained
    for (const BlockRow& row : written) {
      EXPECT_TRUE(row.kind == BlockKind::kBuffers || read.contains(row))
          << "lost: kind " << static_cast<int>(row.kind) << ", index " << row.index;
    }
    EXPECT_EQ(written.contains({BlockKind::kActivation, round.num_layers}), keeps_outputs);
    EXPECT_EQ(written.contains({BlockKind::kGradient, 0}), round.traits.input_gradient);
  });
}

}  // namespace
}  // namespace rp
