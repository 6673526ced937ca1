// The test acts as a worker that breaks the protocol on purpose, one rule at a time. The
// coordinator must detect it, with --check-consistency or by what it always asserts
// (docs/design/consistency-checker.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "coordinator/coordinator.h"
#include "hoststore/protocol_rule.h"
#include "tests/common/expect_refusal.h"
#include "tests/worker/worker_harness.h"

namespace rp::test {
namespace {

const std::vector<float> kInput = {1, 2, 3};

class BrokenWorker : public testing::Test {
 protected:
  // Tasks: the forward stage of layer 0, the fused stage of layer 1, the backward stage of layer 0;
  // on workers 0, 1, 0.
  void make(const TwoLayers& options = {}) {
    TwoLayers checked = options;
    checked.check_consistency = true;
    store_ = two_layer_store(checked);
    for (const GroupId group : {GroupId(0), GroupId(1)}) {
      const WeightGroupRecord& record = store_->catalogue().weight_groups()[group];
      for (const std::uint64_t moment : {record.moment1_offset, record.moment2_offset})
        std::fill_n(store_->state(moment), 8, 0.0F);
    }
    PipelineSettings settings;
    settings.adds_rounds = options.with_sums;
    settings.plan.by_hand = parse_plan("forward 0 | fused 1 | backward 0", 2);
    coordinator_.emplace(*store_, CoordinatorOptions{.pipelines = {settings}});
  }
  std::shared_ptr<Round> accept(const RoundTraits& traits = {}) {
    RoundInputs inputs;
    inputs.inputs.push_back({.tensors = {float_tensor(kInput)}});
    inputs.arguments.push_back({.tensors = {float_tensor(kInput)}});
    return coordinator_->accept_round(traits, inputs);
  }
  void step(WholeUpdate function = {}) {
    const auto rules = function ? std::vector<UpdateRule>() : std::vector<UpdateRule>{AdamW{}};
    (void)coordinator_->accept_step(0, {.rules = rules, .function = std::move(function)});
  }
  // Takes the next command of the worker that runs slot `number`.
  Command take(std::uint64_t number) {
    RingReader<Command> ring = store_->command_reader(static_cast<int>(number % 2));
    EXPECT_EQ(ring.wait(kLong), WaitResult::kReached);
    Command command;
    EXPECT_TRUE(ring.try_pop(command));
    EXPECT_EQ(command.slot.number(), SlotNumber(number));
    return command;
  }
  // The following methods do what a worker does in a task that follows the rules.
  void upload(const Command& command) {
    for (int layer = command.first_layer; layer < command.end_layer; ++layer) {
      const GroupId group(layer);
      EXPECT_EQ(store_->published(group).wait_at_least(command.version, kLong), WaitResult::kReached);
      seen(command, layer) = {.checksum = DataChecksum::of(store_->working_copy(group, command.version)),
                              .version = command.version};
    }
  }
  void write_gradient(const Command& command, float value) {
    const UseId use(command.first_layer);
    std::fill_n(gradient(use), 8, value);
    store_->round_table(command).gradient_checksum(use) = DataChecksum::of(store_->gradient(use));
  }
  void complete(const Command& command) {
    const auto worker = static_cast<int>(command.slot.number().value() % 2);
    ASSERT_TRUE(store_->completion_writer(worker).try_push({.slot = command.slot}));
  }
  void do_task(std::uint64_t number) {
    const Command command = take(number);
    upload(command);
    if (command.phase != Phase::kForward) write_gradient(command, 0.5F);
    complete(command);
  }
  void do_round(std::uint64_t first_slot) {
    for (std::uint64_t slot = first_slot; slot < first_slot + 3; ++slot) do_task(slot);
  }
  WeightsSeen& seen(const Command& command, int layer) {
    return store_->round_table(command).weights_seen(UseId(layer), command.phase != Phase::kForward);
  }
  float* gradient(UseId use) {
    return reinterpret_cast<float*>(store_->gradients(store_->catalogue().uses()[use].gradient_offset));
  }
  // Expects that the user's next calls end with an error that names the rule and contains `parts`.
  void expect_violation(
      ProtocolRule rule, std::vector<std::string> parts, const std::function<void()>& calls = [] {}) {
    parts.insert(parts.end(), {"--check-consistency: ", rule_text(rule), "please report it"});
    expect_error(ExitCode::kUserError, parts, [&] {
      calls();
      coordinator_->synchronize();
    });
    EXPECT_EQ(store_->failed().wait_at_least(1, kLong), WaitResult::kReached)
        << "other processes must not wait until they time out";
  }

  std::unique_ptr<Store> store_;
  std::optional<Coordinator> coordinator_;
};

TEST_F(BrokenWorker, IsNotReportedIfItFollowsTheRules) {
  for (const bool with_sums : {false, true}) {
    make({.with_sums = with_sums});
    for (std::uint64_t round = 0; round < 3; ++round) {
      (void)accept();
      do_round(3 * round);
      step();
    }
    coordinator_->synchronize();
    EXPECT_EQ(store_->published(GroupId(0)).observe(), Version(3));
    EXPECT_EQ(store_->gradient_released(UseId(1)).observe(), 3U);
    coordinator_.reset();
  }
}

// Between synchronize() and the next call, the caller may write the weights.
TEST_F(BrokenWorker, IsNotBlamedForWeightsThatTheCallerWrites) {
  make({.num_copies = 2});
  (void)accept();
  do_round(0);
  step();
  coordinator_->synchronize();
  for (const std::uint64_t copy : {0U, 1U})
    *store_->parameters(store_->catalogue().weight_groups()[GroupId(0)].parameter_offset[copy]) ^= std::byte{1};
  (void)accept();
  do_round(3);
  coordinator_->synchronize();
  for (const Version version : {Version(0), Version(1)}) {
    const WeightStamp::Contents expected{.is_complete = true,
                                         .version = version,
                                         .checksum = DataChecksum::of(store_->working_copy(GroupId(0), version))};
    EXPECT_EQ(store_->stamp(GroupId(0), version.value()).observe(), expected);
  }
}

// A step's function is running when the run ends, and throws then.
TEST_F(BrokenWorker, MeetsACoordinatorThatEndsWhileAFunctionFails) {
  make();
  (void)accept();
  std::atomic<bool> begun{false};
  step([&begun](Version, bool, const GradientWriter&) {
    begun = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    throw std::runtime_error("too late");
  });
  do_round(0);
  while (!begun) std::this_thread::yield();
  coordinator_.reset();
}

// The forward and the backward pass of a round use the version of the round.

TEST_F(BrokenWorker, UploadsWithoutWaitingForPublished) {
  make();
  (void)accept();
  do_round(0);
  (void)accept();
  const Command command = take(3);
  seen(command, 0) = {.checksum = 9, .version = command.version + 1};
  complete(command);
  expect_violation(ProtocolRule::kSameWeights,
                   {"slot 3 (forward of layers 0-0 of pipeline 0, round 1, step 1) on worker 1",
                    "version 1 of weight group 0", "wanted is version 0"});
}

TEST_F(BrokenWorker, ComputesItsBackwardWithOtherBytesThanTheForward) {
  make();
  (void)accept();
  do_task(0);
  do_task(1);
  const Command backward = take(2);
  upload(backward);
  seen(backward, 0).checksum ^= 2;
  write_gradient(backward, 1);
  complete(backward);
  expect_violation(ProtocolRule::kSameWeights,
                   {"slot 2 (backward of layers 0-0", "of weight group 0", "the round's first task with it"});
}

TEST_F(BrokenWorker, ComputesWithoutWeights) {
  make();
  (void)accept();
  complete(take(0));
  expect_violation(ProtocolRule::kSameWeights, {"slot 0", "has never uploaded weight group 0"});
}

// A worker writes a gradient into the store only after it has observed `gradient_released`.

TEST_F(BrokenWorker, WritesTheNextGradientBeforeTheLastOneIsTaken) {
  make();
  const auto round = accept();
  do_round(0);
  coordinator_->wait_all(*round);
  EXPECT_EQ(store_->gradient_released(UseId(0)).observe(), 0U);
  gradient(UseId(0))[3] = 9;
  step();
  expect_violation(ProtocolRule::kGradientsStay,
                   {"gradient buffer 0 (of weight group 0, layer 0", "was committed with checksum"});
}

// A completion is sent after everything that the task writes is in place, whatever reads the
// gradient later.

TEST_F(BrokenWorker, CompletesBeforeItsGradientIsInPlace) {
  for (const char* reader : {"update", "sum", "function"}) {
    SCOPED_TRACE(reader);
    make({.with_sums = std::string(reader) == "sum"});
    const auto round = accept();
    do_task(0);
    const Command fused = take(1);
    upload(fused);
    complete(fused);
    do_task(2);
    expect_violation(ProtocolRule::kGradientsStay, {"gradient buffer 1", "was committed before it was written"}, [&] {
      coordinator_->wait_all(*round);
      step(std::string(reader) != "function" ? WholeUpdate() : [](Version, bool, const GradientWriter&) {});
    });
    coordinator_.reset();
  }
}

// A block that is kept for a reader does not change until the reader has read it.

TEST_F(BrokenWorker, WritesIntoOutputsThatAreKeptForTheCaller) {
  make();
  const auto round = accept({.kind = RoundKind::kForward, .mode = RoundMode::kEvaluate});
  do_task(0);
  const Command last = take(1);
  upload(last);
  const RoundTable table = store_->round_table(last);
  ASSERT_GE(store_->arena(1).grow(4096), 4096U);
  table.place(BlockKind::kActivation, 2, 0) = {.slot = last.slot, .arena = 1, .offset = 0, .bytes = 64};
  std::byte* block = store_->arena(1).data(0, 64);
  table.checksum(BlockKind::kActivation, 2, 0) = DataChecksum::of({block, 64});
  complete(last);
  coordinator_->wait_forward(*round);
  std::uint64_t bytes = 0;
  EXPECT_EQ(coordinator_->block(*round, {BlockKind::kActivation, 2}, 0, bytes), block);
  block[1] = std::byte{1};
  expect_error(ExitCode::kUserError, {rule_text(ProtocolRule::kBlocksStay), "microbatch 0, written by slot 1"}, [&] {
    (void)coordinator_->block(*round, {BlockKind::kActivation, 2}, 0, bytes);
  });
}

// Completions are committed in slot order, and only those of this epoch. This is asserted in every
// run.

class BrokenWorkerDeathTest : public BrokenWorker {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  // The coordinator receives a completion of `slot` when the completion of slot 0 is due.
  void complete_as(std::uint64_t slot) {
    make();
    const auto round = accept();
    Command command = take(0);
    upload(command);
    command.slot = SlotInEpoch(slot);
    complete(command);
    coordinator_->wait_all(*round);
  }
};

TEST_F(BrokenWorkerDeathTest, CompletesOutOfSlotOrder) {
  EXPECT_DEATH(complete_as(2), "completion.slot ==.*does not hold");
}

TEST_F(BrokenWorkerDeathTest, CompletesForAnotherEpoch) {
  EXPECT_DEATH(
      {
        make();
        const auto round = accept();
        Command command = take(0);
        upload(command);
        command.slot = SlotInEpoch(Epoch(1), command.slot.number());
        complete(command);
        coordinator_->wait_all(*round);
      },
      "completion.slot ==.*does not hold");
}

}  // namespace
}  // namespace rp::test
