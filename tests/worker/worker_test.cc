#include "worker/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/text.h"
#include "tests/common/expect_refusal.h"
#include "tests/worker/worker_harness.h"

namespace rp {
namespace {

using test::ServedWorker;

constexpr std::int64_t kShort = 100 * kNsPerMs;

Completion next_completion(Store& store) {
  RingReader<Completion> ring = store.completion_reader(0);
  Completion completion;
  EXPECT_EQ(ring.wait(kLong), WaitResult::kReached);
  EXPECT_TRUE(ring.try_pop(completion));
  return completion;
}

TEST(Worker, DoesItsTasksAndSaysSo) {
  ServedWorker worker;
  worker.start();
  worker.push(test::forward_command());
  worker.table.source(BlockKind::kActivation, 1) = {.worker = 0, .first_event = EventInEpoch(0)};
  worker.push(test::fused_command());
  for (std::uint64_t slot = 0; slot < 2; ++slot) {
    const Completion completion = next_completion(*worker.store);
    EXPECT_EQ(completion.slot, SlotInEpoch(slot));
    EXPECT_EQ(completion.outcome, TaskOutcome::kDone);
    EXPECT_LE(completion.start_ns, completion.end_ns);
  }
  EXPECT_EQ(worker.store->worker_words(0).events.observe(), EventInEpoch(4));
  EXPECT_EQ(worker.table.loss(1).num, 1U);
  EXPECT_EQ(worker.table.loss(1).values[0], 1.0);
  EXPECT_EQ(*worker.store->gradients(worker.store->catalogue().uses()[UseId(1)].gradient_offset), std::byte{1});
  EXPECT_EQ(*worker.store->gradients(worker.store->catalogue().uses()[UseId(0)].gradient_offset), std::byte{0});
  worker.finish();
  EXPECT_GE(worker.store->worker_words(0).heartbeat.observe(), 4U);
  EXPECT_EQ(worker.store->worker_words(0).acknowledged.observe(), kEndEpoch.value() + 1);
}

TEST(Worker, RecomputesWhileTheGradientIsMissing) {
  ServedWorker worker;
  worker.table.source(BlockKind::kGradient, 1) = {.worker = 1, .first_event = EventInEpoch(6)};
  worker.start();
  worker.push(test::backward_command());
  ASSERT_EQ(worker.executor.recomputed.wait_at_least(1, kLong), WaitResult::kReached);
  EXPECT_EQ(worker.executor.recomputed_input, 1);
  test::place_input(*worker.store, worker.table, BlockKind::kGradient, 1, {8}, 32768);
  worker.store->worker_words(1).events.publish(EventInEpoch(7));
  ASSERT_EQ(worker.executor.recomputed.wait_at_least(2, kLong), WaitResult::kReached)
      << "the first one has its gradient";
  worker.store->worker_words(1).events.publish(EventInEpoch(8));
  EXPECT_EQ(next_completion(*worker.store).outcome, TaskOutcome::kDone);
  EXPECT_EQ(worker.executor.recomputed.observe(), 2U) << "once a microbatch";
  EXPECT_EQ(worker.executor.last_gradient, 8);
  worker.finish();
}

TEST(Worker, ClearsItsAccumulatorsWhileWeightsAreMissing) {
  ServedWorker worker;
  worker.start();
  Command command = test::fused_command();
  command.version = Version(1);
  worker.push(command);
  EXPECT_EQ(worker.executor.cleared.wait_at_least(1, kLong), WaitResult::kReached);
  worker.store->published(GroupId(1)).publish(Version(1));
  EXPECT_EQ(next_completion(*worker.store).outcome, TaskOutcome::kDone);
  worker.finish();
}

TEST(Worker, HasMemoryPreparedOnceAndClearsWhatIsNotZeroYet) {
  ServedWorker worker;
  worker.device.gives_zeros = true;
  worker.start();
  worker.push(test::forward_command());
  EXPECT_EQ(next_completion(*worker.store).outcome, TaskOutcome::kDone);
  Command command = test::fused_command();
  for (std::uint64_t num_cleared = 0; num_cleared < 3; ++num_cleared) {
    worker.push(command);
    EXPECT_EQ(next_completion(*worker.store).outcome, TaskOutcome::kDone);
    EXPECT_EQ(worker.executor.cleared.observe(), num_cleared) << "only the first task finds new memory";
    command.slot = SlotInEpoch(command.slot.value() + 1);
    command.first_event = command.first_event + 2;
  }
  worker.finish();
  const WeightGroupRecord& group = worker.store->catalogue().weight_groups()[GroupId(1)];
  using Prepared = std::vector<std::pair<std::uint64_t, MemoryUse>>;
  EXPECT_EQ(worker.device.prepared, (Prepared{{group.device_bytes(), MemoryUse::kGradients},
                                              {group.accumulator_bytes(), MemoryUse::kAccumulators}}))
      << "for a task with gradients, and not again for tasks that need no more";
}

TEST(Worker, MakesDataOfAnExceptionInTheUsersCode) {
  ServedWorker worker;
  worker.executor.failure = cat(std::string(5000, 'x'), "end");
  worker.start();
  worker.push(test::forward_command());
  EXPECT_EQ(next_completion(*worker.store).outcome, TaskOutcome::kFailed);
  const FailureRecord& record = worker.store->failure(0);
  EXPECT_EQ(record.layer, FailureRecord::kElsewhere);
  EXPECT_EQ(record.microbatch, 1);
  EXPECT_EQ(std::string(record.message.data()), std::string(record.message.size() - 1, 'x'))
      << "cut, with a zero at the end";
  worker.push(test::fused_command());  // dropped: it may depend on the failed one
  worker.finish();
  Completion completion;
  EXPECT_FALSE(worker.store->completion_reader(0).try_pop(completion));
}

void expect_names_what_was_missing(const Command& command, const std::vector<std::string>& parts,
                                   const InputSource& input = {}) {
  ServedWorker worker({.wait_timeout_ns = kShort});
  worker.table.source(BlockKind::kActivation, 1) = input;
  worker.start();
  worker.push(command);
  expect_error(ExitCode::kHang, parts, [&] { worker.join(); });
}

TEST(Worker, NamesTheWeightsThatNeverArrived) {
  Command command = test::forward_command();
  command.version = Version(3);
  expect_names_what_was_missing(command,
                                {"worker 0", "version 3 of weight group 0", "slot 0 (forward of layers 0-0, round 0)"});
}

TEST(Worker, NamesTheWorkerWhoseOutputNeverArrived) {
  expect_names_what_was_missing(test::fused_command(),
                                {"microbatch 0 of the outputs of layer 0 from worker 1", "fused of layers 1-1"},
                                {.worker = 1, .first_event = EventInEpoch(6)});
}

TEST(Worker, NamesTheGradientBufferThatWasNeverReleased) {
  Command command = test::fused_command();
  command.released_before = 2;
  expect_names_what_was_missing(command, {"gradient buffer 1", "slot 1"});
}

// Returns the next wait of this kind that a thread of the worker publishes. Fails the test if that
// takes long.
Wait next_wait(const ServedWorker& worker, WorkerThread thread, WaitKind kind) {
  const Deadline deadline = Deadline::after_ns(20 * kNsPerSecond);
  while (!deadline.passed()) {
    const auto wait = worker.board.entry(1).waits(thread).observe();
    if (wait && wait->kind == kind) return *wait;
    std::this_thread::yield();
  }
  ADD_FAILURE() << "not seen: " << Wait{.kind = kind}.text();
  return {};
}

TEST(Worker, RecordsWhatEachThreadWaitsForOnTheBoardUntilItArrives) {
  ServedWorker worker;
  worker.start();
  EXPECT_TRUE(next_wait(worker, WorkerThread::kWeightUploader, WaitKind::kNextTask).is_idle());
  Command command = test::fused_command();
  command.version = Version(3);
  command.released_before = 1;
  worker.table.source(BlockKind::kActivation, 1) = {.worker = 1, .first_event = EventInEpoch(6)};
  worker.push(command);

  const Wait weights = next_wait(worker, WorkerThread::kWeightUploader, WaitKind::kWeights);
  EXPECT_EQ(weights.slot, 1);
  EXPECT_EQ(weights.numbers[0], 3);
  EXPECT_EQ(weights.numbers[1], 1);
  const Wait input = next_wait(worker, WorkerThread::kInputUploader, WaitKind::kInputs);
  EXPECT_EQ(input.numbers, (std::array<std::int64_t, 4>{0, 0, 1, 1}));
  EXPECT_EQ(next_wait(worker, WorkerThread::kStageRunner, WaitKind::kOwnWeights).slot, 1);
  EXPECT_EQ(worker.board.entry(1).task().slot, 1);
  EXPECT_EQ(worker.board.entry(1).task().num_microbatches, 2);

  worker.store->published(GroupId(1)).publish(Version(3));
  EXPECT_EQ(next_wait(worker, WorkerThread::kStageRunner, WaitKind::kOwnInputs).numbers[0], 0);
  worker.store->worker_words(1).events.publish(EventInEpoch(8));
  EXPECT_EQ(next_wait(worker, WorkerThread::kGradientDownloader, WaitKind::kGradientReleased).numbers[0], 1);
  worker.store->gradient_released(UseId(1)).publish(1);
  EXPECT_EQ(next_completion(*worker.store).outcome, TaskOutcome::kDone);
  for (const WorkerThread thread : {WorkerThread::kWeightUploader, WorkerThread::kInputUploader,
                                    WorkerThread::kStageRunner, WorkerThread::kGradientDownloader}) {
    EXPECT_TRUE(next_wait(worker, thread, WaitKind::kNextTask).is_idle());
  }
  EXPECT_EQ(worker.board.entry(1).task().slot, -1);
  EXPECT_EQ(worker.board.entry(1).state(), ProcessState::kIdle);
  worker.finish();
}

TEST(Worker, LeavesTheWaitThatFailedOnTheBoard) {
  ServedWorker worker({.wait_timeout_ns = kShort});
  Command command = test::forward_command();
  command.version = Version(3);
  worker.start();
  worker.push(command);
  EXPECT_THROW(worker.join(), Error);
  ASSERT_TRUE(worker.board.entry(1).waits(WorkerThread::kWeightUploader).observe().has_value());
  EXPECT_EQ(worker.board.entry(1).waits(WorkerThread::kWeightUploader).observe()->kind, WaitKind::kWeights);
}

TEST(Worker, SurvivesAPauseOfItsUserThatIsLongerThanTheTimeout) {
  ServedWorker worker({.wait_timeout_ns = kNsPerMs});
  worker.start();
  const std::atomic<bool> never{false};
  SequenceWord nothing{};
  EXPECT_EQ(nothing.wait_at_least(1, {&never, 50 * kNsPerMs}), WaitResult::kTimedOut);  // this is the pause
  worker.finish();
}

// A coordinator sends commands only to a warm worker; but one in the same process may have sent
// some before.
TEST(Worker, WarmsUpBeforeItAsksForCommandsAndBeforeAnyCopy) {
  ServedWorker worker;
  std::atomic<bool> is_warm{false}, was_cold{false};
  for (const StreamKind kind : {StreamKind::kUploadParameters, StreamKind::kUploadActivations}) {
    worker.device.interrupt(kind, {.before_copy = [&] { was_cold.store(was_cold.load() || !is_warm.load()); }});
  }
  worker.executor.warming = [&] {
    // This is long enough for a weight uploader that does not wait.
    EXPECT_EQ(worker.store->worker_words(0).acknowledged.wait_at_least(1, {&kNeverStop, kShort}),
              WaitResult::kTimedOut);
    is_warm.store(true);
  };
  worker.push(test::forward_command());
  worker.start();
  EXPECT_EQ(worker.store->worker_words(0).acknowledged.wait_at_least(1, kLong), WaitResult::kReached);
  EXPECT_TRUE(is_warm.load());
  EXPECT_GE(worker.store->worker_words(0).warm_up_ns, kShort);
  EXPECT_EQ(next_completion(*worker.store).outcome, TaskOutcome::kDone);
  worker.finish();
  EXPECT_FALSE(was_cold.load());
}

TEST(Worker, ThatCannotWarmUpNeverAsksForCommands) {
  ServedWorker worker;
  worker.executor.warming = [] { throw Error(ExitCode::kNoResource, "no kernel for this GPU"); };
  worker.push(test::forward_command());
  worker.start();
  EXPECT_THAT(error_of([&] { worker.join(); }), testing::HasSubstr("no kernel for this GPU"));
  EXPECT_EQ(worker.store->worker_words(0).acknowledged.observe(), 0U);
}

// A worker must end even while it waits for something.
TEST(Worker, EndsWhateverItWaitsFor) {
  Command no_weights = test::forward_command();
  no_weights.version = Version(1);
  const Command no_input = test::fused_command();  // its source is set below
  Command no_free_gradient = test::fused_command();
  no_free_gradient.released_before = 1;
  const std::vector<std::vector<Command>> cases = {
      {},
      {no_weights},
      {no_input},
      {no_free_gradient},
      {no_free_gradient, no_free_gradient, no_free_gradient, no_free_gradient},
      {no_input, no_weights}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "case " << i);
    ServedWorker worker({.wait_timeout_ns = 60 * kNsPerSecond});
    if (i == 2 || i == 5)
      worker.table.source(BlockKind::kActivation, 1) = {.worker = 1, .first_event = EventInEpoch(0)};
    worker.start();
    for (const Command& command : cases[i]) worker.push(command);
    EXPECT_EQ(worker.store->worker_words(0).acknowledged.wait_at_least(1, kLong), WaitResult::kReached);
    const std::int64_t start = now_ns();
    worker.finish();
    EXPECT_LT(now_ns() - start, 5 * kNsPerSecond);
  }
}

}  // namespace
}  // namespace rp
