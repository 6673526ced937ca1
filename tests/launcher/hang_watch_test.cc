#include "launcher/hang_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rp {
namespace {

using testing::HasSubstr;

// A run with two workers. Time passes in steps of the watch's interval.
class HangWatchTest : public testing::Test {
 protected:
  HangWatchTest() {
    watch_.set_wait_timeout(0, true);
    processes_ = {process("coordinator", 100), process("worker 0", 101), process("worker 1", 102)};
    commit_waits_for(1, 57);
  }

  static ProcessSnapshot process(const std::string& name, pid_t pid) {
    ProcessSnapshot snapshot{.name = name, .is_worker = name != "coordinator", .pid = pid, .kernel_state = 'S'};
    snapshot.state = ProcessState::kBusy;
    snapshot.progress.committed = 57;
    return snapshot;
  }
  void commit_waits_for(int worker, std::int64_t slot) {
    processes_[0].waits = {{"commit", {.kind = WaitKind::kCompletion, .slot = slot, .numbers = {worker}}}};
    processes_[1 + worker].task.slot = slot;
  }
  // Lets time pass without progress until a process hangs, and returns how long that took, in seconds; -1: none did in
  // `most` seconds.
  double silence(double most = 1000) {
    for (double seconds = 0; seconds < most;) {
      const double slice = static_cast<double>(HangWatch::kIntervalNs) / 1e9;
      seconds += slice;
      now_ns_ += HangWatch::kIntervalNs;
      threads_.front().delay_ns += delay_per_interval_ns_;
      hang_ = watch_.check(processes_, now_ns_, notes_);
      if (hang_) return seconds;
    }
    return -1;
  }
  void progress() {
    ++processes_[2].num_advances;
    now_ns_ += HangWatch::kIntervalNs;
    EXPECT_FALSE(watch_.check(processes_, now_ns_, notes_));
  }

  std::vector<ProcessSnapshot> processes_;
  std::vector<ThreadTimes> threads_{{.thread = 7, .state = 'S'}, {.thread = 8, .state = 'S', .delay_ns = kNsPerSecond}};
  std::int64_t delay_per_interval_ns_ = 0;
  pid_t traced_ = 0;
  HangWatch watch_{
      {.tracer_of = [this](pid_t pid) { return pid == traced_ ? 7 : 0; },
       .thread_times = [this](pid_t) { return threads_; },
       .thread_named = [](pid_t pid,
                          const std::string& name) { return name == "rp-compute" ? pid + 1000 : pid + 2000; }}};
  std::int64_t now_ns_ = 50 * kNsPerSecond;
  std::string notes_;
  std::optional<Hang> hang_;
};

TEST_F(HangWatchTest, ATaskThatTakesFarLongerThanAnyBeforeHangs) {
  progress();
  EXPECT_NEAR(silence(), 10, 1);
  EXPECT_EQ(hang_->process, 2U) << "the worker with the next slot to commit";
  EXPECT_EQ(hang_->thread, 1102) << "its compute thread";
  EXPECT_THAT(hang_->what, HasSubstr("hangs: for 10.0 s nothing was computed or updated"));
}

TEST_F(HangWatchTest, AProcessThatHasCrashedMayWaitForADebugger) {
  processes_[2].has_crashed = true;
  progress();
  EXPECT_NEAR(silence(), 10, 1) << "it is not asked to wait";
  watch_ = HangWatch({.tracer_of = [](pid_t) { return 0; },
                      .thread_times = [](pid_t) { return std::vector<ThreadTimes>(); },
                      .thread_named = [](pid_t pid, const std::string&) { return pid; }},
                     /*expects_debuggers=*/true);
  watch_.set_wait_timeout(0, true);
  progress();
  EXPECT_EQ(silence(2000), -1);
  processes_[1].state = ProcessState::kAttached;
  processes_[1].has_crashed = true;  // while it starts
  EXPECT_EQ(silence(2000), -1);
  processes_[1].has_crashed = processes_[2].has_crashed = false;
  EXPECT_GT(silence(), 0);
}

TEST_F(HangWatchTest, ANodeThatWaitsForOthersDoesNotHang) {
  progress();
  processes_[1].waits = {{"weights", {.kind = WaitKind::kWeights, .slot = 57}}};
  commit_waits_for(0, 57);
  processes_[0].waits.push_back({"updates", {.kind = WaitKind::kNodeGradients}});
  EXPECT_EQ(silence(2000), -1) << "a worker waits for weights, which wait for gradients of other nodes";
  processes_[0].waits = {{"caller", {.kind = WaitKind::kNodeDecision}}};
  EXPECT_EQ(silence(2000), -1);
  processes_[0].waits = {{"caller", {.kind = WaitKind::kUpdates}}, {"updates", {.kind = WaitKind::kNodeSquares}}};
  EXPECT_EQ(silence(2000), -1);
  commit_waits_for(1, 58);
  processes_[0].waits.push_back({"updates", {.kind = WaitKind::kNodeGradients}});
  EXPECT_GE(watch_.node_wait_ns(), 1999 * kNsPerSecond);
  EXPECT_GT(silence(2000), 0) << "a worker that computes is not excused by what others have not sent yet";
  EXPECT_EQ(watch_.node_wait_ns(), 0);
  EXPECT_EQ(hang_->process, 2U);
}

TEST_F(HangWatchTest, MeasuresForHowLongANodeHasOnlyWaitedForOthers) {
  progress();
  EXPECT_EQ(watch_.node_wait_ns(), 0);
  processes_[0].waits = {{"caller", {.kind = WaitKind::kNodeRound, .since_ns = 7}}};
  EXPECT_EQ(silence(20), -1);
  EXPECT_EQ(watch_.node_wait_ns(), 20 * kNsPerSecond - HangWatch::kIntervalNs);
  progress();
  EXPECT_EQ(watch_.node_wait_ns(), 0) << "a worker has computed";
  const auto ends_with = [this](auto change) {
    const std::vector<ProcessSnapshot> before = processes_;
    EXPECT_EQ(silence(5), -1);
    EXPECT_GE(watch_.node_wait_ns(), 4 * kNsPerSecond);
    change();
    EXPECT_EQ(silence(0.5), -1);
    processes_ = before;
    traced_ = 0;
    return watch_.node_wait_ns() == 0;
  };
  EXPECT_TRUE(ends_with([this] { processes_[0].waits[0].second.since_ns = 8; })) << "another wait";
  EXPECT_TRUE(ends_with([this] { traced_ = 102; })) << "a debugger";
  EXPECT_TRUE(ends_with([this] { processes_[0].kernel_state = 'T'; })) << "a stopped coordinator";
  EXPECT_TRUE(ends_with([this] { processes_[2].kernel_state = 'T'; })) << "a stopped worker";
  EXPECT_TRUE(ends_with([this] {
    processes_[0].waits = {{"commit", {.kind = WaitKind::kNextSlot}}};
  })) << "a program that does something else";
  EXPECT_TRUE(ends_with([this] { commit_waits_for(1, 58); })) << "a worker that computes";
  EXPECT_TRUE(ends_with([this] { watch_.turn_off(); }));
}

TEST_F(HangWatchTest, AWorkerWhoseGpuWaitsForOtherNodesDoesNotHang) {
  progress();
  processes_[1].waits = {{"gradients", {.kind = WaitKind::kNodeGpus, .slot = 57}}};
  commit_waits_for(0, 57);
  EXPECT_EQ(silence(2000), -1);
  EXPECT_GE(watch_.node_wait_ns(), 1999 * kNsPerSecond);
  processes_[1].waits = {{"gradients", {.kind = WaitKind::kNodeGpus, .slot = 53}}};
  EXPECT_GT(silence(2000), 0) << "a slot that computes is not excused by an earlier one";
}

TEST_F(HangWatchTest, ARunWithLongTasksHasMorePatience) {
  progress();
  EXPECT_EQ(silence(4), -1);
  progress();
  EXPECT_NEAR(silence(), 20 * 4, 5);
  EXPECT_THAT(hang_->what, HasSubstr("before that for at most 4.0 s"));
}

TEST_F(HangWatchTest, TheFirstTasksMayTakeLonger) {
  processes_[0].progress.committed = 3;
  progress();
  EXPECT_NEAR(silence(), 60, 1);
}

TEST_F(HangWatchTest, ASlotThatHangsAgainGetsMoreTime) {
  progress();
  EXPECT_NEAR(silence(), 10, 1);
  EXPECT_NEAR(silence(), 40, 1);
  EXPECT_NEAR(silence(), 160, 1);
  commit_waits_for(1, 58);
  EXPECT_NEAR(silence(), 10, 1) << "another slot";
}

TEST_F(HangWatchTest, TimeInWhichItsThreadsWaitForAProcessorOrADiskDoesNotCount) {
  progress();
  delay_per_interval_ns_ = HangWatch::kIntervalNs * 9 / 10;
  EXPECT_NEAR(silence(), 100, 6) << "it gets a tenth of a processor";
  delay_per_interval_ns_ = 0;
  threads_.front().state = 'D';
  commit_waits_for(1, 58);
  EXPECT_NEAR(silence(), 600, 1);
  threads_.front().state = 'R';
  commit_waits_for(1, 59);
  EXPECT_NEAR(silence(), 600, 1) << "it gets no processor at all";
}

TEST_F(HangWatchTest, ADebuggerStopsTheClockForAll) {
  progress();
  traced_ = 101;
  EXPECT_EQ(silence(2000), -1);
  traced_ = 0;
  EXPECT_NEAR(silence(), 10, 1);
}

TEST_F(HangWatchTest, APauseOfTheWholeRunDoesNotCount) {
  progress();
  EXPECT_EQ(silence(5), -1);
  now_ns_ += 3600 * kNsPerSecond;
  EXPECT_FALSE(watch_.check(processes_, now_ns_, notes_));
}

TEST_F(HangWatchTest, AToolThatSlowsTasksDownAndTheUsersOwnLimitEndTheAdaptation) {
  progress();
  watch_.expect_slow_tasks();
  EXPECT_NEAR(silence(), 600, 1);
  watch_.set_wait_timeout(30, true);
  EXPECT_NEAR(silence(), 30, 1);
  watch_.set_wait_timeout(0, false);
  EXPECT_NEAR(silence(), 600, 1) << "where the run ends with a hang";
}

TEST_F(HangWatchTest, WhatWaitsForUpdatesIsNotAtFault) {
  progress();
  processes_[2].waits = {{"weights", {.kind = WaitKind::kWeights, .slot = 57}},
                         {"compute", {.kind = WaitKind::kOwnWeights, .slot = 57}}};
  EXPECT_NEAR(silence(), 600, 1);
  EXPECT_EQ(hang_->process, 0U) << "the coordinator";
  ++processes_[0].num_advances;  // a group was updated
  now_ns_ += HangWatch::kIntervalNs;
  EXPECT_FALSE(watch_.check(processes_, now_ns_, notes_));
}

TEST_F(HangWatchTest, AStoppedWorkerIsAtFaultWhateverItWaitedForWhenItWasStopped) {
  watch_.set_wait_timeout(1, false);
  processes_[2].waits = {{"weights", {.kind = WaitKind::kWeights, .slot = 57}}};
  EXPECT_GT(silence(), 0);
  EXPECT_EQ(hang_->process, 0U);
  processes_[2].kernel_state = 'T';
  EXPECT_GT(silence(), 0);
  EXPECT_EQ(hang_->process, 2U);
  EXPECT_THAT(hang_->what, HasSubstr("is stopped by a signal: for 1.0 s nothing was computed or updated"));
}

TEST_F(HangWatchTest, ARunWithoutWorkWaitsForItsProgram) {
  processes_[0].waits = {{"commit", {.kind = WaitKind::kNextSlot}}};
  progress();
  EXPECT_EQ(silence(5000), -1);
  processes_[0].waits.emplace_back("caller", Wait{.kind = WaitKind::kUpdates});
  EXPECT_NEAR(silence(), 600, 1) << "the program waits for the coordinator's own threads";
  EXPECT_EQ(hang_->process, 0U);
}

TEST_F(HangWatchTest, AThreadThatDoesNotWaitIsNamed) {
  progress();
  processes_[2].waits = {{"compute", {.kind = WaitKind::kOwnInputs, .slot = 57}},
                         {"weights", {.kind = WaitKind::kNextTask}}};
  EXPECT_NEAR(silence(), 10, 1);
  EXPECT_EQ(hang_->thread, 2102);
}

TEST_F(HangWatchTest, AStoppedProcessIsReportedSoonAndReplacedLater) {
  progress();
  processes_[1].kernel_state = 'T';
  watch_.check_soon();
  EXPECT_TRUE(watch_.next_check().passed());
  EXPECT_FALSE(watch_.check(processes_, now_ns_, notes_));
  EXPECT_EQ(notes_, "") << "perhaps all processes were stopped, and this one goes on last";
  EXPECT_LE(watch_.next_check().left_ns(), kNsPerSecond / 4);
  now_ns_ += kNsPerSecond / 4;
  EXPECT_FALSE(watch_.check(processes_, now_ns_, notes_));
  EXPECT_EQ(notes_,
            "rp-launch: worker 0 (pid 101) is stopped by a signal; `kill -CONT 101` lets it go on; after 5.0 s the run "
            "goes on without it\n");
  notes_.clear();
  EXPECT_NEAR(silence(), 5, 1);
  EXPECT_EQ(hang_->process, 1U);
  EXPECT_EQ(hang_->thread, 0) << "it could not record where it is";
  EXPECT_EQ(notes_, "") << "said once";
}

TEST_F(HangWatchTest, AStoppedCoordinatorIsReportedAndNotEnded) {
  progress();
  processes_[0].kernel_state = 'T';
  EXPECT_EQ(silence(2000), -1);
  EXPECT_THAT(notes_, HasSubstr("coordinator (pid 100) is stopped by a signal"));
}

TEST_F(HangWatchTest, AProcessThatGoesOnIsForgotten) {
  progress();
  processes_[1].kernel_state = 'T';
  EXPECT_EQ(silence(3), -1);
  processes_[1].kernel_state = 'S';
  progress();
  processes_[1].kernel_state = 'T';
  EXPECT_EQ(silence(3), -1);
}

TEST_F(HangWatchTest, AWorkerThatDoesNotStartIsEnded) {
  watch_.set_attach_timeout(30);
  progress();
  processes_[1] = process("worker 0", 201);
  processes_[1].state = ProcessState::kAttached;
  for (int i = 0; i < 200 && !hang_; ++i) {
    ++processes_[2].num_advances;  // the other one computes
    now_ns_ += HangWatch::kIntervalNs;
    hang_ = watch_.check(processes_, now_ns_, notes_);
  }
  ASSERT_TRUE(hang_);
  EXPECT_EQ(hang_->process, 1U);
  EXPECT_THAT(hang_->what, HasSubstr("did not start within 30 s (--attach-timeout"));
}

}  // namespace
}  // namespace rp
