#include "coordinator/round.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "tests/coordinator/random_plan.h"

namespace rp {
namespace {

using Block = std::pair<BlockKind, int>;

// The blocks that a slot writes and reads, said without the code under test: what a stage needs to run.
std::set<Block> written_by(const Plan& plan, const Slot& slot) {
  std::set<Block> blocks;
  if (slot.phase == Phase::kForward) {
    for (const int boundary : saved_boundaries(plan, slot.layers)) blocks.insert({BlockKind::kActivation, boundary});
  } else if (slot.layers.first > 0) {
    blocks.insert({BlockKind::kGradient, slot.layers.first});
  }
  return blocks;
}

std::set<Block> read_by(const Slot& slot) {
  std::set<Block> blocks = {{BlockKind::kActivation, slot.layers.first}};
  if (slot.phase == Phase::kFused) blocks.insert({BlockKind::kArguments, 0});
  if (slot.phase == Phase::kBackward) blocks.insert({BlockKind::kGradient, slot.layers.end});
  return blocks;
}

template <typename Check>
void for_random_plans(Check&& check) {
  for (unsigned seed = 1; seed <= 500; ++seed) {
    std::mt19937 random(seed);
    const int num_layers = 1 + static_cast<int>(random() % 12);
    const Plan plan = test::random_plan(random, num_layers);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << plan_text(plan, num_layers));
    check(plan, num_layers);
  }
}

TEST(Slots, FollowThePlanAndAreNumberedOn) {
  const Plan plan = parse_plan("forward 0-1 2 | fused 3-4 | backward 1-2 0", 5);
  const std::vector<Slot> slots = slots_of(plan, 5, 40);
  ASSERT_EQ(slots.size(), 5U);
  const std::vector<std::pair<Phase, LayerRange>> expected = {{Phase::kForward, {0, 2}}, {Phase::kForward, {2, 3}},
                                                              {Phase::kFused, {3, 5}},   {Phase::kBackward, {1, 3}},
                                                              {Phase::kBackward, {0, 1}}};
  for (std::size_t i = 0; i < slots.size(); ++i) {
    EXPECT_EQ(slots[i].number, 40 + i);
    EXPECT_EQ(slots[i].phase, expected[i].first);
    EXPECT_EQ(slots[i].layers, expected[i].second);
  }
}

TEST(SavedBoundaries, AreTheStagesEndAndWhereBackwardStagesBeginInside) {
  const Plan plan = parse_plan("forward 0-3 4 | fused 5 | backward 3-4 2 0-1", 6);
  EXPECT_EQ(saved_boundaries(plan, {0, 4}), (std::vector<int>{2, 3, 4}));
  EXPECT_EQ(saved_boundaries(plan, {4, 5}), (std::vector<int>{5}));
}

TEST(Blocks, AreWrittenOnceBeforeTheyAreReadForAnyPlan) {
  for_random_plans([](const Plan& plan, int num_layers) {
    std::set<Block> there = {{BlockKind::kActivation, 0}, {BlockKind::kArguments, 0}};  // the coordinator's
    for (const Slot& slot : slots_of(plan, num_layers, 0)) {
      for (const Block& block : read_by(slot)) EXPECT_TRUE(there.contains(block)) << "boundary " << block.second;
      for (const Block& block : written_by(plan, slot)) EXPECT_TRUE(there.insert(block).second) << "boundary " << block.second;
    }
  });
}

TEST(Blocks, AreFreedExactlyOnceByTheirLastReaderForAnyPlan) {
  for_random_plans([](const Plan& plan, int num_layers) {
    const std::vector<Slot> slots = slots_of(plan, num_layers, 0);
    std::map<Block, std::uint64_t> last_reader;
    std::set<Block> written = {{BlockKind::kActivation, 0}, {BlockKind::kArguments, 0}};
    for (const Slot& slot : slots) {
      for (const Block& block : read_by(slot)) last_reader[block] = slot.number;
      written.merge(written_by(plan, slot));
    }
    std::set<Block> freed;
    for (const Slot& slot : slots) {
      for (const FreedBlock& block : freed_blocks(plan, slot)) {
        EXPECT_TRUE(freed.insert({block.kind, block.boundary}).second) << "boundary " << block.boundary << " twice";
        EXPECT_EQ(slot.number, (last_reader[{block.kind, block.boundary}])) << "boundary " << block.boundary;
      }
    }
    EXPECT_EQ(freed, written) << "what is written and not freed is lost";
  });
}

TEST(Producers, AreTheSlotsThatWriteABoundaryForAnyPlan) {
  for_random_plans([](const Plan& plan, int num_layers) {
    const std::vector<Slot> slots = slots_of(plan, num_layers, 7);
    for (const Slot& slot : slots) {
      if (slot.layers.first > 0) {
        const Slot& producer = slots[activation_producer(slots, slot.layers.first)];
        EXPECT_TRUE(written_by(plan, producer).contains({BlockKind::kActivation, slot.layers.first}));
      }
      if (slot.phase == Phase::kBackward) {
        const Slot& producer = slots[gradient_producer(slots, slot.layers.end)];
        EXPECT_TRUE(written_by(plan, producer).contains({BlockKind::kGradient, slot.layers.end}));
        EXPECT_LT(producer.number, slot.number);
      }
    }
  });
}

}  // namespace
}  // namespace rp
