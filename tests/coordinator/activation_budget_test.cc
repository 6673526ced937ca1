#include "coordinator/rounds/activation_budget.h"

#include <gtest/gtest.h>

#include "hoststore/arena_view.h"
#include "hoststore/range_allocator.h"

namespace rp {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr int kInput = RowBlocks::kAtAcceptance;

ActivationBudget budget_for(int num_workers, const RoundMemory& round) {
  ActivationBudget budget(num_workers);
  budget.learn(PlanKind::kFused, round, 0);
  return budget;
}

using Arenas = std::vector<std::uint64_t>;

// Two forward stages, the fused stage, two backward stages; activations of 120 bytes, gradients of
// 60.
const std::vector<RowBlocks> kFiveSlots = {{0, 4, 120}, {1, 3, 120}, {2, 3, 60}, {3, 4, 60}};

TEST(ActivationBudget, OfOneWorkerHoldsWhatItsOneTaskReadsAndWrites) {
  // Alive at slot 3: both activations, the gradient of the fused stage, and the slot's own
  // gradient.
  EXPECT_EQ(budget_for(1, {.blocks = kFiveSlots, .num_slots = 5}).arenas(), (Arenas{360, 0}));
}

TEST(ActivationBudget, OfSeveralWorkersFollowsTheSlotsRoundTheWorkers) {
  // A worker has slots 0, 2, 4 in one round, and 1, 3 in the next one. Of two microbatches, the
  // second slot that is running has ended one.
  const RoundMemory two{.blocks = kFiveSlots, .num_slots = 5, .num_microbatches = 2, .rounds_overlap = false};
  EXPECT_EQ(budget_for(2, two).arenas(), (Arenas{180, 180, 0}));
  // With as many workers as slots, slot i is always on worker i, and the same slot of the next
  // round follows it at once.
  const RoundMemory five{.blocks = kFiveSlots, .num_slots = 5, .num_microbatches = 1, .rounds_overlap = true};
  EXPECT_EQ(budget_for(5, five).arenas(), (Arenas{240, 240, 120, 120, 0, 0}));
}

TEST(ActivationBudget, CountsTheNextRoundOnlyIfItMayOverlap) {
  RoundMemory round{.blocks = {{0, 2, 100}}, .num_slots = 3, .num_microbatches = 4, .rounds_overlap = true};
  EXPECT_EQ(budget_for(3, round).arenas(), (Arenas{150, 0, 0, 0}))
      << "two of four microbatches when the last slot ends";
  round.rounds_overlap = false;
  EXPECT_EQ(budget_for(3, round).arenas(), (Arenas{100, 0, 0, 0}));
}

TEST(ActivationBudget, CountsOneMicrobatchLessOfEachSlotThatFollows) {
  // At the commit of slot 0, the slots that follow on other workers have ended three, two, one of
  // four microbatches.
  const RoundMemory chain{.blocks = {{0, 0, 100}, {1, 0, 100}, {2, 0, 100}, {3, 0, 100}, {4, 0, 100}},
                          .num_slots = 5,
                          .num_microbatches = 4,
                          .rounds_overlap = false};
  EXPECT_EQ(budget_for(5, chain).arenas(), (Arenas{100, 75, 50, 25, 0, 0}));
}

TEST(ActivationBudget, HoldsTheInputsOfTwoRounds) {
  EXPECT_EQ(budget_for(1, {.blocks = {{kInput, 0, 5}}, .num_slots = 3}).arenas(), (Arenas{0, 10}));
  EXPECT_EQ(budget_for(1, {.blocks = {{kInput, 2, 5}}, .num_slots = 3, .rounds_overlap = false}).arenas(),
            (Arenas{0, 10}));
}

TEST(ActivationBudget, HoldsBuffersUntilTheNextRoundHasReadThem) {
  // Buffers are written by slot 1 of each round and read until slot 2 of the next: at slots 1 and
  // 2, those of two rounds are alive.
  EXPECT_EQ(budget_for(1, {.blocks = {{1, 5, 6}}, .num_slots = 3}).arenas(), (Arenas{12, 0}));
}

TEST(ActivationBudget, FollowsTheTimesOfTheSlots) {
  // Counts the output of slot 2 while the input of slot 1 is alive: until slot 1 is committed.
  RoundMemory round{.blocks = {{2, 2, 400}, {0, 1, 1}}, .num_slots = 3, .num_microbatches = 4, .rounds_overlap = false};
  const auto at_commit_of_slot_1 = [&round](std::vector<SlotTime> times) {
    round.times = std::move(times);
    round.blocks.front().last_reader = 1;
    return budget_for(3, round).arenas()[2];
  };
  EXPECT_EQ(at_commit_of_slot_1({}), 300U) << "all alike: one microbatch behind";
  EXPECT_EQ(at_commit_of_slot_1({{.work = 1}, {.work = 10}, {.work = 1}}), 300U) << "it waits for slot 1";
  EXPECT_EQ(at_commit_of_slot_1({{.work = 1}, {.work = 1}, {.work = 3}}), 100U)
      << "slot 1 ends at 5, slot 2's first at 5";
  EXPECT_EQ(at_commit_of_slot_1({{.work = 1}, {.work = 1}, {.lead = 2, .work = 1}}), 100U)
      << "its recompute does not wait";
  EXPECT_EQ(at_commit_of_slot_1({{.work = 1}, {.work = 1}, {.work = 10}}), 0U);
  EXPECT_EQ(at_commit_of_slot_1({{.work = 1}, {.work = 0}, {.work = 10}}), 300U) << "not known";
}

TEST(ActivationBudget, IsWhatRoundsHaveNeededAndWhatRoundsLikeTheLastOneWillNeed) {
  const RoundMemory large{.blocks = {{0, 2, 100}}, .num_slots = 3, .rounds_overlap = false};
  const RoundMemory small{.blocks = {{0, 2, 10}}, .num_slots = 3, .rounds_overlap = false};
  ActivationBudget budget(2);
  budget.learn(PlanKind::kFused, large, 0);
  EXPECT_EQ(budget.arenas(), (Arenas{100, 100, 0})) << "the next one begins with worker 1";
  budget.learn(PlanKind::kFused, small, 1);
  EXPECT_EQ(budget.arenas(), (Arenas{100, 10, 0})) << "no large round begins there";
  budget.learn(PlanKind::kInfer, large, 0);
  budget.learn(PlanKind::kFused, small, 1);
  EXPECT_EQ(budget.arenas(), (Arenas{100, 100, 0})) << "evaluations may come again";
}

TEST(ActivationBudget, ComesInWholePieces) {
  ActivationBudget budget(1);
  EXPECT_EQ(budget.bytes(), 0U);
  budget.learn(PlanKind::kFused, {.blocks = {{0, 1, ArenaView::kPieceBytes + 1}, {kInput, 1, 1}}, .num_slots = 2}, 0);
  EXPECT_EQ(budget.bytes(), 3 * ArenaView::kPieceBytes);
  ActivationBudget both(1);
  both.add(budget);
  both.add(budget);
  EXPECT_EQ(both.arenas(), (Arenas{2 * ArenaView::kPieceBytes + 2, 4}));
}

// A table in this process's memory. place() sets places as the processes of a run would.
class TableOfRound {
 public:
  explicit TableOfRound(Round& round) {
    const RoundShape shape{.num_layers = static_cast<std::uint32_t>(round.num_layers),
                           .num_microbatches = static_cast<std::uint32_t>(round.traits.num_microbatches)};
    round.table_bytes = RoundTable::bytes(shape);
    memory_.resize(round.table_bytes / sizeof(std::uint64_t) + 1);
    table_.emplace(RoundTable::create(reinterpret_cast<std::byte*>(memory_.data()), shape));
  }
  void place(BlockKind kind, int index, std::uint64_t bytes) {
    for (int m = 0; m < (is_once_a_task(kind) ? 1 : table_->num_microbatches()); ++m)
      table_->place(kind, index, m).bytes = bytes;
  }
  [[nodiscard]] const RoundTable& table() const { return *table_; }

 private:
  std::vector<std::uint64_t> memory_;
  std::optional<RoundTable> table_;
};

TEST(BlocksOfARound, AreWhatItsTasksWroteInWholePagesUntilTheirLastReader) {
  std::vector<LayerRequest> layers(3, LayerRequest{.name = "l"});
  layers[0].num_buffers = 1;
  const Catalogue catalogue = Catalogue::lay_out(layers, 1, false);
  Round round;
  round.num_layers = 3;
  round.traits.num_microbatches = 2;
  round.plan = parse_plan("forward 0 1 | fused 2 | backward 0-1", 3);
  round.slots = slots_of(round.plan, 3, 0);
  round.origins[{BlockKind::kBuffers, 0}] = {};  // the buffers of the round before
  TableOfRound table(round);
  table.place(BlockKind::kActivation, 0, 1);  // the inputs of the model
  table.place(BlockKind::kActivation, 1, kPage + 1);
  table.place(BlockKind::kActivation, 2, 100);
  table.place(BlockKind::kArguments, 0, 8);
  table.place(BlockKind::kGradient, 2, 3 * kPage);
  table.place(BlockKind::kBuffers, 0, 12);
  const std::vector<RowBlocks> expected = {
      {kInput, 3, 2 * kPage},  // forward and backward of layer 0 read the inputs
      {0, 1, 4 * kPage},      {1, 2, 2 * kPage},
      {2, 3, 6 * kPage},      {0, 4 + 3, kPage},  // read by the next round's backward stage
      {kInput, 2, 2 * kPage}, {kInput, 4 + 3, RangeAllocator::rounded_bytes(round.table_bytes)}};
  const std::vector<LayerTiming> times = {{1, 2, 4}, {8, 16, 32}, {64, 128, 256}};
  const RoundMemory memory = memory_of(round, table.table(), catalogue, false, times);
  EXPECT_EQ(memory.num_slots, 4);
  EXPECT_EQ(memory.num_microbatches, 2);
  const std::vector<std::pair<double, double>> expected_times = {{0, 1}, {0, 8}, {0, 64 + 256}, {2 + 16, 4 + 32}};
  for (std::size_t slot = 0; slot < 4; ++slot) {
    EXPECT_EQ(std::make_pair(memory.times[slot].lead, memory.times[slot].work), expected_times[slot])
        << "slot " << slot;
  }
  const std::vector<RowBlocks>& blocks = memory.blocks;
  ASSERT_EQ(blocks.size(), expected.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) EXPECT_EQ(blocks[i], expected[i]) << "block " << i;
}

}  // namespace
}  // namespace rp
