#include "coordinator/rounds/dispatcher.h"

#include <gtest/gtest.h>

#include "coordinator/rounds/input_blocks.h"
#include "tests/worker/worker_harness.h"

namespace rp::test {
namespace {

class DispatcherTest : public testing::Test {
 protected:
  // Returns a round of three slots, for workers 0 and 1 in turn.
  std::shared_ptr<Round> round(int pipeline = 0) {
    auto result = std::make_shared<Round>();
    result->traits.pipeline = pipeline;
    result->traits.num_microbatches = 2;
    result->num_layers = 2;
    result->slots = slots_of(parse_plan("forward 0 | fused 1 | backward 0", 2), 2, 0);
    inputs_.place_table(*result);
    return result;
  }
  void append(const std::shared_ptr<Round>& round) {
    dispatcher_.append(round, 0, round->slots.size());
    dispatcher_.dispatch();
  }
  // Returns the numbers of the slots whose commands the worker has received since the last call.
  std::vector<std::uint64_t> sent_to(int worker) {
    std::vector<std::uint64_t> numbers;
    Command command;
    while (commands_[worker].try_pop(command)) numbers.push_back(command.slot.number().value());
    return numbers;
  }

  std::unique_ptr<Store> store_ = two_layer_store({});
  InputBlocks inputs_{*store_};
  std::vector<RingReader<Command>> commands_ = {store_->command_reader(0), store_->command_reader(1)};
  Dispatcher dispatcher_{*store_};
};

using Numbers = std::vector<std::uint64_t>;

TEST_F(DispatcherTest, SendsNothingFromTheFirstSlotOnThatIsHeld) {
  dispatcher_.hold_from(SlotNumber(4));
  dispatcher_.hold_from(SlotNumber(2));
  dispatcher_.hold_from(SlotNumber(3));
  EXPECT_FALSE(dispatcher_.is_held());
  append(round());
  EXPECT_EQ(dispatcher_.num_dispatched(), 2U);
  dispatcher_.commit_next();
  EXPECT_FALSE(dispatcher_.is_held());
  dispatcher_.commit_next();
  dispatcher_.hold_from(SlotNumber(1));  // it is committed
  dispatcher_.dispatch();
  EXPECT_TRUE(dispatcher_.is_held());
  EXPECT_EQ(dispatcher_.next().slot->number, SlotNumber(2));
  dispatcher_.end_epoch();
  dispatcher_.begin_epoch(Epoch(1), {1});
  dispatcher_.dispatch();
  EXPECT_EQ(dispatcher_.num_dispatched(), 2U) << "not in a later epoch either";
}

TEST_F(DispatcherTest, SendsSlotsInTurnAndThreeAhead) {
  for (int i = 0; i < 3; ++i) append(round());
  EXPECT_EQ(dispatcher_.num_appended(), 9U);
  EXPECT_EQ(dispatcher_.num_dispatched(), 6U);
  EXPECT_EQ(sent_to(0), (Numbers{0, 2, 4}));
  EXPECT_EQ(sent_to(1), (Numbers{1, 3, 5}));
  dispatcher_.commit_next();
  dispatcher_.dispatch();
  EXPECT_EQ(sent_to(0), (Numbers{6}));
  EXPECT_EQ(sent_to(1), (Numbers{})) << "slot 7 is not sent before slot 1 is committed";
  while (dispatcher_.num_committed() < 9) {
    dispatcher_.commit_next();
    dispatcher_.dispatch();
  }
  EXPECT_EQ(sent_to(0), (Numbers{8}));
  EXPECT_EQ(sent_to(1), (Numbers{7}));
}

TEST_F(DispatcherTest, CommitsInSlotOrderAndKnowsTheLastOfAFlight) {
  const std::shared_ptr<Round> rounds[] = {round(0), round(1)};
  for (const auto& round : rounds) append(round);
  EXPECT_EQ(dispatcher_.num_flights(0), 1);
  EXPECT_EQ(dispatcher_.num_flights(1), 1);
  for (std::uint64_t number = 0; number < 6; ++number) {
    const Dispatcher::Next next = dispatcher_.next();
    EXPECT_EQ(next.round, rounds[number / 3]);
    EXPECT_EQ(next.slot, &rounds[number / 3]->slots[number % 3]);
    EXPECT_EQ(next.slot->number, SlotNumber(number));
    EXPECT_EQ(next.slot->worker, static_cast<int>(number % 2));
    EXPECT_EQ(next.ends_flight, number % 3 == 2);
    dispatcher_.commit_next();
    dispatcher_.dispatch();
  }
  EXPECT_EQ(dispatcher_.num_flights(0), 0);
  EXPECT_EQ(dispatcher_.num_flights(1), 0);
}

TEST_F(DispatcherTest, ANewEpochSendsAgainWhatIsNotCommitted) {
  const std::shared_ptr<Round> rounds[] = {round(), round()};
  for (const auto& round : rounds) append(round);
  dispatcher_.commit_next();
  dispatcher_.end_epoch();
  append(round());
  EXPECT_EQ(dispatcher_.num_dispatched(), 6U) << "nothing is sent while the epoch changes";
  dispatcher_.begin_epoch(Epoch(3), {1});
  EXPECT_EQ(dispatcher_.num_dispatched(), dispatcher_.num_committed());
  dispatcher_.dispatch();
  EXPECT_EQ(sent_to(0), (Numbers{0, 2, 4})) << "worker 0 takes no part, so nothing was sent to it or dropped";
  EXPECT_EQ(sent_to(1), (Numbers{1, 2, 3}));
  EXPECT_EQ(rounds[0]->slots[1].worker, 1);
  EXPECT_EQ(dispatcher_.next().slot->number, SlotNumber(1));
  const InputSource& source = store_->round_table(*rounds[0]).source(BlockKind::kActivation, 1);
  EXPECT_EQ(source.first_event.epoch(), Epoch(0)) << "made by slot 0, which is committed";
}

// The parts of a round are its forward slots first and its backward slots later.
TEST_F(DispatcherTest, TakesARoundInParts) {
  const std::shared_ptr<Round> parts = round();
  dispatcher_.append(parts, 0, 1);
  append(round());
  dispatcher_.append(parts, 1, 3);
  dispatcher_.dispatch();
  EXPECT_EQ(dispatcher_.num_flights(0), 3);
  EXPECT_EQ(parts->slots[0].number, SlotNumber(0));
  EXPECT_EQ(parts->slots[1].number, SlotNumber(4));
  EXPECT_EQ(parts->slots[2].number, SlotNumber(5));
  for (int i = 0; i < 4; ++i) dispatcher_.commit_next();
  EXPECT_EQ(dispatcher_.next().slot, &parts->slots[1]);
}

// The events of a worker are numbered over all of its tasks, one per microbatch. The tables store
// which event each block waits for.
TEST_F(DispatcherTest, GivesEveryMicrobatchOfAWorkerAnEventOfItsOwn) {
  const std::shared_ptr<Round> rounds[] = {round(), round()};
  for (const auto& round : rounds) append(round);
  EXPECT_EQ(rounds[0]->slots[0].first_event, EventNumber(0));  // slots 0, 2, 4 run on worker 0
  EXPECT_EQ(rounds[0]->slots[2].first_event, EventNumber(2));
  EXPECT_EQ(rounds[1]->slots[1].first_event, EventNumber(4));
  EXPECT_EQ(rounds[0]->slots[1].first_event, EventNumber(0));  // slots 1, 3, 5 run on worker 1
  EXPECT_EQ(rounds[1]->slots[0].first_event, EventNumber(2));
  const InputSource& source = store_->round_table(*rounds[1]).source(BlockKind::kActivation, 1);
  EXPECT_EQ(source.worker, 1);  // from slot 3
  EXPECT_EQ(source.first_event, EventInEpoch(2));
}

}  // namespace
}  // namespace rp::test
