#include "worker/observers/worker_observers.h"

#include <gtest/gtest.h>

#include "tests/common/temp_directory.h"
#include "tests/worker/worker_harness.h"

namespace rp {
namespace {

class CountedRanges : public ProfilerRanges {
 public:
  void push(const std::string&) override { ++num_open; }
  void pop() override { --num_open; }
  int num_open = 0;
};

class WorkerObserversTest : public testing::Test {
 protected:
  TempDirectory directory_;
  TraceJournal journal_ = TraceJournal::create(directory_.path(), {});
  std::unique_ptr<Store> store_ = test::two_layer_store({});
  CpuDevice device_;
  const FaultBoard board_ = FaultBoard::create(2);
  FaultBoardEntry entry_ = board_.entry(1);
  CountedRanges profiler_;
  TaskRanges ranges_{&profiler_};
  const Command command_ = test::forward_command();
};

TEST_F(WorkerObserversTest, PassEachEventToAllObserversThatNeedIt) {
  WorkerObservers observers(*store_, 0, device_, entry_, &journal_, &ranges_, {});
  observers.task_taken(command_);
  EXPECT_EQ(entry_.state(), ProcessState::kBusy);
  EXPECT_EQ(entry_.task().microbatch, -1);
  {
    const auto task = observers.task(command_);
    observers.inputs_arrived(command_, 1);
    EXPECT_EQ(entry_.task().microbatch, 1);
    const auto microbatch = observers.microbatch(1, /*is_recompute=*/false);
    EXPECT_EQ(profiler_.num_open, 2);
  }
  EXPECT_EQ(profiler_.num_open, 0) << "computations end with their scopes";
  observers.runner_idle();
  EXPECT_EQ(entry_.state(), ProcessState::kIdle);
  const std::vector<MicrobatchTime> times = {{.microbatch = 1, .begin_ns = 5, .end_ns = 7}};
  observers.task_done(command_, times);
  const std::vector<TraceJournal::Piece> pieces = journal_.pieces();
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(journal_.records(pieces[0]).size(), 2u) << "the microbatch and the task";
}

TEST_F(WorkerObserversTest, WriteAWaitToTheBoardAndOnceItIsOverToTheTrace) {
  WorkerObservers observers(*store_, 0, device_, entry_, &journal_, nullptr, {});
  WaitRecord record = observers.waits(WorkerThread::kInputUploader);
  record.publish({.kind = WaitKind::kNextTask});
  EXPECT_EQ(entry_.waits(WorkerThread::kInputUploader).observe().value().kind, WaitKind::kNextTask);
  EXPECT_TRUE(journal_.pieces().empty());
  const std::int64_t begin_ns = now_ns();
  while (now_ns() - begin_ns < 2 * kLeastTracedWaitNs) {}
  record.publish_none();
  EXPECT_EQ(journal_.pieces().size(), 1u);
}

TEST_F(WorkerObserversTest, DoNothingWhereNothingIsSwitchedOn) {
  TaskRanges no_ranges;
  WorkerObservers observers(*store_, 0, device_, std::nullopt, nullptr, &no_ranges, {});
  const auto task = observers.task(command_);
  observers.copy_begun(StreamKind::kDownload);
  observers.gradient_enqueued(command_, UseId(0));
  observers.waits(WorkerThread::kStageRunner).publish({.kind = WaitKind::kNextTask});
  EXPECT_FALSE(observers.waits(WorkerThread::kStageRunner).observe().has_value());
}

}  // namespace
}  // namespace rp
