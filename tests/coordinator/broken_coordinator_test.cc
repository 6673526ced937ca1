// The test acts as a coordinator that breaks the protocol on purpose, one rule at a time. The
// worker, with --check-consistency, must report which rule was broken
// (docs/design/consistency-checker.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/updates/weight_stamps.h"
#include "hoststore/protocol_rule.h"
#include "tests/common/expect_refusal.h"
#include "tests/worker/worker_harness.h"

namespace rp::test {
namespace {

constexpr std::uint64_t kBlockOffset = 32768;  // free memory in the coordinator's arena

class BrokenCoordinator : public testing::Test {
 protected:
  void make(const TwoLayers& options = {}) {
    TwoLayers checked = options;
    checked.check_consistency = true;
    worker_.emplace(checked);
    stamps_.emplace(store());
    stamps_->stamp_all(0, Version(0));
  }
  Store& store() { return *worker_->store; }
  RoundTable& table() { return worker_->table; }
  WeightStamps& stamps() { return *stamps_; }
  std::byte* working_copy(GroupId group, std::uint64_t copy) {
    return store().parameters(store().catalogue().weight_groups()[group].parameter_offset[copy]);
  }
  // Makes a version as an update does, in the right order.
  void make_version(GroupId group, Version version) {
    stamps().begin(group, version);
    *working_copy(group, store().catalogue().weight_groups()[group].copy_of(version)) =
        static_cast<std::byte>(version.value());
    stamps().complete(group, version);
    store().published(group).publish(version);
  }
  Command forward(Version version = {}) { return in_this_round(forward_command(), version); }
  Command fused(Version version = {}) { return in_this_round(fused_command(), version); }
  void wait_for_completion(std::uint64_t slot) {
    RingReader<Completion> ring = store().completion_reader(0);
    ASSERT_EQ(ring.wait(kLong), WaitResult::kReached);
    Completion completion;
    ASSERT_TRUE(ring.try_pop(completion));
    EXPECT_EQ(completion.slot, SlotInEpoch(slot));
  }
  // Sends `commands` to the worker, in addition to those that it has. Expects that it ends with an
  // error that names the rule and contains `parts`.
  void expect_violation(ProtocolRule rule, std::vector<std::string> parts, const std::vector<Command>& commands) {
    if (!serves_) serve();
    for (const Command& command : commands) worker_->push(command);
    parts.insert(parts.end(), {"--check-consistency: worker 0, slot ", rule_text(rule), "please report it"});
    expect_error(ExitCode::kUserError, parts, [&] { worker_->join(); });
    Completion completion;
    while (store().completion_reader(0).try_pop(completion)) EXPECT_NE(completion.slot, commands.back().slot);
  }
  // Begins an epoch with worker 0.
  void begin_epoch(Epoch epoch) {
    store().worker_words(0).takes_part = epoch.value() + 1;
    store().epoch().publish_begun(epoch);
  }
  void serve() {
    serves_ = true;
    worker_->start();
  }

  std::optional<ServedWorker> worker_;

 private:
  Command in_this_round(Command command, Version version) {
    command.table_bytes = RoundTable::bytes(table().shape());
    command.version = version;
    return command;
  }

  std::optional<WeightStamps> stamps_;
  bool serves_ = false;
};

TEST_F(BrokenCoordinator, IsNotReportedIfItFollowsTheRules) {
  make({.num_copies = 2, .num_buffers = 1});
  for (const int layer : {0, 1})
    place_input(store(), table(), BlockKind::kBuffers, layer, {3}, kBlockOffset + 4096U * static_cast<unsigned>(layer));
  make_version(GroupId(0), Version(1));
  make_version(GroupId(1), Version(1));
  serve();
  worker_->push(forward(Version(1)));
  wait_for_completion(0);
  table().source(BlockKind::kActivation, 1) = {.worker = 0, .first_event = EventInEpoch(0)};
  worker_->push(fused(Version(1)));
  wait_for_completion(1);
  EXPECT_EQ(table().weights_seen(UseId(0), false),
            (WeightsSeen{DataChecksum::of(store().working_copy(GroupId(0), Version(1))), Version(1)}));
  EXPECT_EQ(table().weights_seen(UseId(1), true),
            (WeightsSeen{DataChecksum::of(store().working_copy(GroupId(1), Version(1))), Version(1)}));
  EXPECT_EQ(table().weights_seen(UseId(1), false), WeightsSeen{});
  EXPECT_EQ(table().gradient_checksum(UseId(1)), DataChecksum::of(store().gradient(UseId(1))));
  EXPECT_NE(table().checksum(BlockKind::kActivation, 1, 1), 0U);
  worker_->finish();
}

// A worker uploads version v of a weight group only when published(group) >= v.

TEST_F(BrokenCoordinator, PublishesAVersionThatIsStillBeingWritten) {
  make();
  stamps().begin(GroupId(0), Version(1));
  store().published(GroupId(0)).publish(Version(1));
  expect_violation(
      ProtocolRule::kPublishedWeights,
      {"weight group 0 was published as version 1 and version 1 is wanted", "holds version 1, being written",
       "slot 0 of epoch 0 (forward of layers 0-0 of pipeline 0, round 0"},
      {forward(Version(1))});
}

TEST_F(BrokenCoordinator, PublishesOneWeightGroupOfAStageTooEarly) {
  make();
  make_version(GroupId(0), Version(1));
  store().published(GroupId(1)).publish(Version(1));
  Command both = fused(Version(1));
  both.first_layer = 0;
  expect_violation(ProtocolRule::kPublishedWeights, {"weight group 1", "holds version 0"}, {both});
}

TEST_F(BrokenCoordinator, PublishesWeightsThatWereNeverWritten) {
  make({.num_copies = 2});
  store().published(GroupId(0)).publish(Version(1));
  expect_violation(ProtocolRule::kPublishedWeights, {"working copy 1 holds nothing"}, {forward(Version(1))});
}

// Version v is stored in copy v mod 2.

TEST_F(BrokenCoordinator, WritesAVersionIntoTheWrongCopy) {
  make({.num_copies = 2});
  make_version(GroupId(0), Version(1));
  store()
      .stamp(GroupId(0), 1)
      .publish(Version(3),
               DataChecksum::of(store().working_copy(GroupId(0), Version(1))));  // version 2 is wanted in copy 0
  store().published(GroupId(0)).publish(Version(3));
  expect_violation(ProtocolRule::kPublishedWeights, {"version 2 is wanted", "working copy 0 holds version 0"},
                   {forward(Version(2))});
}

TEST_F(BrokenCoordinator, KeepsOneWorkingCopyInAnAsynchronousRun) {
  make();
  make_version(GroupId(0), Version(1));  // overwrites version 0, which the round of this step still needs
  expect_violation(ProtocolRule::kPublishedWeights, {"version 0 is wanted", "working copy 0 holds version 1"},
                   {forward(Version(0))});
}

// A skipped step rewrites its working copy and publishes its version, too.

TEST_F(BrokenCoordinator, PublishesASkippedStepWithoutRewritingTheCopy) {
  make({.num_copies = 2});
  make_version(GroupId(0), Version(1));
  store().published(GroupId(0)).publish(Version(2));
  expect_violation(ProtocolRule::kPublishedWeights, {"published as version 2", "working copy 0 holds version 0"},
                   {forward(Version(2))});
}

// An update waits for the commit of every task that uses the weight group, so no task uses the copy
// that it overwrites.

TEST_F(BrokenCoordinator, UpdatesACopyWhileItIsUploaded) {
  make();
  worker_->device.interrupt(StreamKind::kUploadParameters,
                            {.after_copy = [this] { stamps().begin(GroupId(0), Version(1)); }});
  expect_violation(ProtocolRule::kWeightsStay,
                   {"while version 0 of weight group 0 was uploaded, working copy 0 became version 1, being written"},
                   {forward(Version(0))});
}

TEST_F(BrokenCoordinator, WritesIntoACopyWhileItIsUploadedWithoutAStamp) {
  make();
  worker_->device.interrupt(StreamKind::kUploadParameters,
                            {.before_copy = [this] { *working_copy(GroupId(0), 0) = std::byte{77}; }});
  expect_violation(ProtocolRule::kWeightsStay, {"the bytes that were uploaded as version 0 of weight group 0"},
                   {forward(Version(0))});
}

TEST_F(BrokenCoordinator, WritesIntoACopyBetweenTwoTasksOfARound) {
  make();
  serve();
  worker_->push(forward(Version(0)));
  wait_for_completion(0);
  *working_copy(GroupId(0), 0) = std::byte{77};
  Command backward = fused(Version(0));
  backward.first_layer = 0;
  expect_violation(ProtocolRule::kWeightsStay, {"slot 1", "weight group 0"}, {backward});
}

// A sequence word is published after its data.

TEST_F(BrokenCoordinator, PublishesAnEventBeforeTheBlockHasAPlace) {
  make();
  table().place(BlockKind::kActivation, 1, 0) = {};
  store().worker_words(1).events.publish(EventInEpoch(1));
  table().source(BlockKind::kActivation, 1) = {.worker = 1, .first_event = EventInEpoch(0)};
  expect_violation(ProtocolRule::kDataBeforeEvent,
                   {"the activation at boundary 1, microbatch 0", "was not written yet"}, {fused()});
}

TEST_F(BrokenCoordinator, PublishesAnEventBeforeTheBlockHasItsData) {
  make();
  table().checksum(BlockKind::kActivation, 1, 0) = 0;
  store().worker_words(1).events.publish(EventInEpoch(1));
  table().source(BlockKind::kActivation, 1) = {.worker = 1, .first_event = EventInEpoch(0)};
  expect_violation(ProtocolRule::kDataBeforeEvent, {"has a place and no data yet"}, {fused()});
}

TEST_F(BrokenCoordinator, SendsACommandBeforeItsInputsAreInPlace) {
  make();
  table().place(BlockKind::kArguments, 0, 0).bytes = 0;
  expect_violation(ProtocolRule::kDataBeforeEvent, {"the arguments of the loss, microbatch 0"}, {fused()});
}

// A block is freed only at the commit of its last reader.

TEST_F(BrokenCoordinator, FreesAnActivationBeforeItsReaderIsCommitted) {
  make();
  serve();
  worker_->push(forward());
  wait_for_completion(0);
  const BlockPlace freed = table().place(BlockKind::kActivation, 1, 0);
  ASSERT_TRUE(store().free_writer(0).try_push({.epoch = Epoch(0), .offset = freed.offset}));
  // Another round of this worker reuses the memory.
  ArenaView& arena = store().arena(kCoordinatorArena);
  RoundTable other = RoundTable::create(arena.data(kBlockOffset, RoundTable::bytes(table().shape())), table().shape());
  place_input(store(), other, BlockKind::kActivation, 0, {7, 8, 9}, 49152);
  Command second = forward();
  second.table = kBlockOffset;
  second.slot = SlotInEpoch(1);
  second.first_event = EventNumber(2);
  worker_->push(second);
  wait_for_completion(1);
  ASSERT_EQ(other.place(BlockKind::kActivation, 1, 0).offset, freed.offset);
  Command reader = fused();
  reader.slot = SlotInEpoch(2);
  reader.first_event = EventNumber(4);
  table().source(BlockKind::kActivation, 1) = {.worker = 0, .first_event = EventInEpoch(0)};
  expect_violation(ProtocolRule::kBlocksStay,
                   {"the activation at boundary 1, microbatch 0", "of the arena of worker 0", "by slot 0 and has now"},
                   {reader});
}

TEST_F(BrokenCoordinator, FreesTheBuffersOfARoundBeforeItsBackward) {
  make({.num_buffers = 1});
  place_input(store(), table(), BlockKind::kBuffers, 1, {1, 2}, kBlockOffset);
  const BlockPlace place = table().place(BlockKind::kBuffers, 1, 0);
  *store().arena(kCoordinatorArena).data(place.offset + place.bytes - 1, 1) ^= std::byte{1};  // as if reused
  expect_violation(ProtocolRule::kBlocksStay, {"the buffers of layer 1"}, {fused()});
}

TEST_F(BrokenCoordinator, WritesIntoABlockWhileItIsUploaded) {
  make();
  const BlockPlace place = table().place(BlockKind::kActivation, 0, 0);
  worker_->device.interrupt(StreamKind::kUploadActivations, {.before_copy = [this, place] {
                              *store().arena(kCoordinatorArena).data(place.offset + place.bytes - 1, 1) ^= std::byte{1};
                            }});
  expect_violation(ProtocolRule::kBlocksStay,
                   {"the activation at boundary 0, microbatch 0", "changed while it was uploaded"}, {forward()});
}

// Every wait is for an earlier slot, tasks arrive in slot order, and data of another epoch is not
// accepted.

TEST_F(BrokenCoordinator, LetsATaskReadWhatALaterSlotMakes) {
  make();
  table().place(BlockKind::kActivation, 1, 0).arena = 1;
  table().place(BlockKind::kActivation, 1, 0).slot = SlotInEpoch(5);
  expect_violation(ProtocolRule::kWaitsPointBackwards, {"was written by slot 5"}, {fused()});
}

TEST_F(BrokenCoordinator, LetsATaskReadWhatAnEarlierEpochMade) {
  make();
  begin_epoch(Epoch(1));
  serve();
  table().place(BlockKind::kActivation, 1, 0).arena = 1;
  table().place(BlockKind::kActivation, 1, 0).slot = SlotInEpoch(Epoch(0), SlotNumber(0));
  table().source(BlockKind::kActivation, 1) = {.worker = 1, .first_event = EventInEpoch(Epoch(1), EventNumber(0))};
  store().worker_words(1).events.publish(EventInEpoch(Epoch(1), EventNumber(1)));
  Command command = fused();
  command.slot = SlotInEpoch(Epoch(1), SlotNumber(1));
  expect_violation(ProtocolRule::kEpoch, {"slot 1 of epoch 1", "was written in epoch 0 and not 1"}, {command});
}

TEST_F(BrokenCoordinator, SendsACommandOfAnEarlierEpoch) {
  make();
  begin_epoch(Epoch(1));
  expect_violation(ProtocolRule::kEpoch, {"slot 0 of epoch 0", "a command came in epoch 1"}, {forward()});
}

TEST_F(BrokenCoordinator, SendsCommandsOutOfSlotOrder) {
  make();
  serve();
  Command later = forward();
  later.slot = SlotInEpoch(4);
  worker_->push(later);
  wait_for_completion(4);
  Command earlier = fused();
  earlier.slot = SlotInEpoch(3);
  expect_violation(ProtocolRule::kSlotOrder, {"slot 3", "after that of slot 4"}, {earlier});
}

}  // namespace
}  // namespace rp::test
