#include "launcher/process/run_dump.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "common/system/clock.h"

namespace rp {
namespace {

constexpr std::int64_t kNow = 100 * kNsPerSecond;

ProcessSnapshot process(const std::string& name, pid_t pid) {
  ProcessSnapshot snapshot{.name = name, .is_worker = name != "coordinator", .pid = pid};
  snapshot.kernel_state = 'S';
  snapshot.state = ProcessState::kBusy;
  return snapshot;
}

void add_wait(ProcessSnapshot& process, const std::string& thread, Wait wait, double seconds = 12.3) {
  wait.since_ns = kNow - static_cast<std::int64_t>(seconds * 1e9);
  process.waits.emplace_back(thread, wait);
}

// A run in which worker 1 computes slot 57 while worker 0 and the coordinator wait for that slot.
std::vector<ProcessSnapshot> stuck_run() {
  ProcessSnapshot coordinator = process("coordinator", 812);
  coordinator.progress = {.accepted = 60, .dispatched = 59, .committed = 57, .round = 7, .step = 4};
  add_wait(coordinator, "caller", {.kind = WaitKind::kOutputs, .slot = 58, .numbers = {7, 0}});
  add_wait(coordinator, "commit", {.kind = WaitKind::kCompletion, .slot = 57, .numbers = {1}});
  add_wait(coordinator, "updates", {.kind = WaitKind::kNextStep, .numbers = {3}});
  ProcessSnapshot first = process("worker 0", 813);
  first.task = {.slot = 58,
                .round = 7,
                .step = 4,
                .phase = Phase::kBackward,
                .first_layer = 2,
                .end_layer = 4,
                .microbatch = -1,
                .num_microbatches = 4};
  add_wait(first, "weights", {.kind = WaitKind::kWeights, .slot = 60, .numbers = {4, 5}}, 3);
  add_wait(first, "inputs", {.kind = WaitKind::kInputs, .slot = 58, .numbers = {0, 1, 4, 1}});
  add_wait(first, "compute", {.kind = WaitKind::kOwnInputs, .slot = 58, .numbers = {0}});
  add_wait(first, "gradients", {.kind = WaitKind::kNextTask});
  ProcessSnapshot second = process("worker 1", 814);
  second.task = {.slot = 57,
                 .round = 7,
                 .step = 4,
                 .phase = Phase::kFused,
                 .first_layer = 4,
                 .end_layer = 8,
                 .layer = 5,
                 .microbatch = 2,
                 .num_microbatches = 4};
  add_wait(second, "weights", {.kind = WaitKind::kNextTask});
  ProcessSnapshot third = process("worker 2", 815);
  third.state = ProcessState::kIdle;
  add_wait(third, "compute", {.kind = WaitKind::kNextTask});
  return {coordinator, first, second, third};
}

TEST(RunDump, SaysOfEveryProcessWhatItDoesAndWaitsForAndWhatToLookAt) {
  EXPECT_EQ(
      dump_text("rp-launch", "interrupted", stuck_run(), kNow),
      "rp-launch: interrupted; what the processes do now:\n"
      "  coordinator  pid 812, running: newest is round 7 of step 4; last slot accepted: 59, sent: 58, committed: 56\n"
      "    caller     waits 12.3 s for the loss or outputs of round 7, up to slot 58\n"
      "    commit     waits 12.3 s for worker 1 to complete slot 57\n"
      "  worker 0     pid 813, waits: slot 58, backward of layers 2-3, round 7 of step 4\n"
      "    weights    for slot 60: waits 3.0 s for version 4 of weight group 5\n"
      "    inputs     waits 12.3 s for microbatch 0 of the gradient of the outputs of layer 3 from worker 1\n"
      "    compute    waits 12.3 s for its inputs of microbatch 0\n"
      "  worker 1     pid 814, computes: slot 57, fused of layers 4-7, round 7 of step 4, microbatch 2 of 4, layer 5\n"
      "  worker 2     pid 815, idle\n"
      "  to do:       slot 57 of worker 1 is the oldest that is not committed: all others wait for it in the end; `gdb "
      "-p 814` shows where it is\n");
}

TEST(RunDump, AStoppedProcessIsTheFirstThingToLookAt) {
  std::vector<ProcessSnapshot> processes = stuck_run();
  processes[2].kernel_state = 'T';
  const std::string text = dump_text("rp-launch", "a wait ran out", processes, kNow);
  EXPECT_NE(text.find("  worker 1     pid 814, STOPPED: slot 57, fused"), std::string::npos) << text;
  EXPECT_NE(text.find("to do:       worker 1 is stopped by a signal or a debugger; `kill -CONT 814` lets it go on\n"),
            std::string::npos)
      << text;
}

TEST(RunDump, WhereTheOldestSlotWaitsForWeightsTheUpdatesAreToBlame) {
  std::vector<ProcessSnapshot> processes = stuck_run();
  processes[2].waits.clear();
  add_wait(processes[2], "weights", {.kind = WaitKind::kWeights, .slot = 57, .numbers = {4, 5}});
  const std::string text = dump_text("rp-launch", "a wait ran out", processes, kNow);
  EXPECT_NE(text.find("to do:       worker 1 waits for the coordinator's updates; `gdb -p 812`"), std::string::npos)
      << text;
}

TEST(RunDump, ARunThatIsInterruptedWhileAllIsWellNeedsNothing) {
  std::vector<ProcessSnapshot> processes = stuck_run();
  processes[0].progress.changed_ns = kNow - kNsPerMs;
  processes[0].waits.clear();  // the coordinator is between two waits
  processes[2].kernel_state = 'D';
  const std::string text = dump_text("rp-launch", "interrupted", processes, kNow);
  EXPECT_NE(text.find("  to do:       nothing: no slot is late."), std::string::npos) << text;
}

TEST(RunDump, ACommitThreadThatIsBusyForLongIsNotTakenForAProgramThatIs) {
  std::vector<ProcessSnapshot> processes = stuck_run();
  processes[0].waits.clear();
  const std::string text = dump_text("rp-launch", "a wait ran out", processes, kNow);
  EXPECT_NE(text.find("to do:       `gdb -p 812` shows where the coordinator is\n"), std::string::npos) << text;
}

TEST(RunDump, AProcessInTheKernelAndOneThatEndedAreNamed) {
  std::vector<ProcessSnapshot> processes = stuck_run();
  processes[1].status = 124 << 8;
  processes[2].kernel_state = 'D';
  const std::string text = dump_text("rp-launch", "a wait ran out", processes, kNow);
  EXPECT_NE(text.find("pid 813, ended with code 124: slot 58"), std::string::npos) << text;
  EXPECT_NE(text.find("/proc/814/stack"), std::string::npos) << text;
}

TEST(RunDump, WhereTheOldestSlotIsOfADeadWorkerItSaysSo) {
  std::vector<ProcessSnapshot> processes = stuck_run();
  processes[2].kernel_state = 'Z';  // it has not been reaped yet
  std::string text = dump_text("rp-launch", "a wait ran out", processes, kNow);
  EXPECT_NE(text.find("pid 814, ended: slot 57"), std::string::npos) << text;
  EXPECT_NE(text.find("to do:       slot 57 of worker 1, which has ended, is what all others wait for\n"),
            std::string::npos)
      << text;
  processes[2].status = 9;
  text = dump_text("rp-launch", "a wait ran out", processes, kNow);
  EXPECT_NE(text.find("pid 814, killed by signal 9: slot 57"), std::string::npos) << text;
  EXPECT_NE(text.find("worker 1, which has ended, is what all"), std::string::npos) << text;
}

TEST(RunDump, TheWaitForOtherNodesIsThatOfTheProgramIfItHasOne) {
  const FaultBoard board = FaultBoard::create(2);
  EXPECT_EQ(node_wait_text(board), "");
  board.entry(0).waits(CoordinatorThread::kCommit).publish({.kind = WaitKind::kNextSlot});
  board.entry(1).waits(WorkerThread::kGradientDownloader).publish({.kind = WaitKind::kNodeGpus});
  EXPECT_EQ(node_wait_text(board), "the GPUs of other nodes to exchange a gradient");
  board.entry(0).waits(CoordinatorThread::kUpdates).publish({.kind = WaitKind::kNodeSquares, .numbers = {7}});
  EXPECT_EQ(node_wait_text(board), "other nodes' part of the gradient norm for version 7");
  board.entry(0).waits(CoordinatorThread::kUser).publish({.kind = WaitKind::kNodeDecision});
  EXPECT_EQ(node_wait_text(board), "the first node to make the same call");
}

TEST(RunDump, WhereTheProgramItselfIsSlowItSaysSo) {
  ProcessSnapshot coordinator = process("coordinator", 812);
  coordinator.state = ProcessState::kStarting;
  EXPECT_EQ(dump_text("rp-launch", "interrupted", {coordinator}, kNow),
            "rp-launch: interrupted; what the processes do now:\n"
            "  coordinator  pid 812, starting: not through session.start()\n"
            "  to do:       the program is not through session.start(); `gdb -p 812` shows where it is\n");
  coordinator.state = ProcessState::kAttached;
  const std::string text = dump_text("rp-launch", "interrupted", {coordinator}, kNow);
  EXPECT_NE(text.find("running: no round yet"), std::string::npos) << text;
  EXPECT_NE(text.find("the workers have nothing to do"), std::string::npos) << text;
}

TEST(RunDump, ASnapshotIsTakenFromTheBoardAndTheKernel) {
  const FaultBoard board = FaultBoard::create(2);
  FaultBoardEntry entry = board.entry(1);
  entry.publish_start(getpid());
  entry.waits(WorkerThread::kInputUploader).publish({.kind = WaitKind::kInputs, .slot = 3});
  const ProcessSnapshot snapshot = snapshot_of("worker 0", 1, getpid(), std::nullopt, entry);
  EXPECT_EQ(snapshot.kernel_state, 'R');
  EXPECT_EQ(snapshot.state, ProcessState::kStarting);
  ASSERT_EQ(snapshot.waits.size(), 1U);
  EXPECT_EQ(snapshot.waits[0].first, "inputs");
  EXPECT_EQ(snapshot.waits[0].second.slot, 3);
}

TEST(RunDump, ProgressIsALayerThatBeganOrASlotThatWasCommitted) {
  const std::vector<ProcessSnapshot> before = stuck_run();
  EXPECT_FALSE(has_progressed(before, before));
  std::vector<ProcessSnapshot> now = before;
  ++now[2].num_advances;
  EXPECT_TRUE(has_progressed(before, now));
  now = before;
  ++now[0].progress.committed;
  EXPECT_TRUE(has_progressed(before, now));
}

}  // namespace
}  // namespace rp
