// Tests the endings of a run: its exit code, its messages, and that nothing is left.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <string>
#include <vector>

#include "common/text.h"
#include "tests/launcher/launched_run.h"

namespace rp {
namespace {

constexpr double kGoneSeconds = 2;

std::vector<pid_t> printed_pids(const std::string& out) {
  std::vector<pid_t> pids;
  for (const std::string& line : lines_of(out)) {
    if (line.starts_with("pid ")) pids.push_back(std::stoi(line.substr(4)));
  }
  return pids;
}

void expect_nothing_left(const LaunchedRun& run) {
  EXPECT_TRUE(run.all_gone_within(kGoneSeconds));
  EXPECT_THAT(files_left(), testing::IsEmpty());
}

void expect_quiet_end(LaunchedRun& run, int code) {
  EXPECT_EQ(run.wait_for_end(), code);
  EXPECT_EQ(run.err(), "");
  expect_nothing_left(run);
}

// Expects exactly one dump of what the processes did on stderr, and no other output there.
void expect_one_dump(const LaunchedRun& run, const std::string& why) {
  const std::vector<std::string> lines = lines_of(run.err());
  ASSERT_EQ(lines.size(), 5U) << run.err();
  EXPECT_THAT(lines[0], testing::StartsWith("rp-launch: " + why + "; "));
  EXPECT_THAT(lines[1], testing::StartsWith("  coordinator  pid "));
  EXPECT_THAT(lines[3], testing::StartsWith("  worker 1     pid "));
  EXPECT_THAT(lines[4], testing::StartsWith("  to do: "));
}

TEST(Endings, SuccessIsZero) {
  LaunchedRun run({"-n", "2", "TOY", "exit", "0"});
  expect_quiet_end(run, 0);
}

TEST(Endings, EightWorkersEndAsOne) {
  LaunchedRun run({"-n", "8", "TOY", "exit", "0"});
  expect_quiet_end(run, 0);
  for (int w = 0; w < 8; ++w) EXPECT_EQ(count_of(run.out(), "after attach " + std::to_string(w) + "\n"), 1);
}

TEST(Endings, TheProgramsOwnExitCodePassesThrough) {
  for (const int code : {1, 2, 64, 69, 74, 93}) {
    LaunchedRun run({"-n", "1", "TOY", "exit", std::to_string(code)});
    expect_quiet_end(run, code);
  }
}

TEST(Endings, AProgramThatEndsBeforeTheWorkersStartPassesItsCodeThrough) {
  LaunchedRun run({"-n", "3", "TOY", "exit_early", "5"});
  expect_quiet_end(run, 5);
}

TEST(Endings, AStopSignalReachesTheCoordinatorAndGivesItsNumber) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    LaunchedRun run({"-n", "2", "TOY", "wait"});
    ASSERT_TRUE(run.wait_for_output("ready"));
    run.send_signal(number);
    expect_quiet_end(run, 128 + number);
  }
}

TEST(Endings, OneSignalIsExactlyOneSignal) {
  LaunchedRun run({"-n", "2", "TOY", "count_signals"});
  ASSERT_TRUE(run.wait_for_output("ready"));
  run.send_signal(SIGINT);
  expect_quiet_end(run, 130);
  EXPECT_EQ(count_of(run.out(), "signals 1\n"), 1);
}

TEST(Endings, APreemptedProgramThatSavedItsStateAsksToBeQueuedAgain) {
  for (const int number : {SIGTERM, SIGHUP, SIGUSR1}) {
    LaunchedRun run({"-n", "2", "TOY", "preempted"});
    ASSERT_TRUE(run.wait_for_output("ready"));
    run.send_signal(number);
    expect_quiet_end(run, 75);
  }
}

TEST(Endings, ATimeLimitPreemptsTheProgram) {
  LaunchedRun run({"--time-limit", "1s", "-n", "2", "TOY", "preempted"});
  ASSERT_TRUE(run.wait_for_output("ready"));
  EXPECT_EQ(run.wait_for_end(20), 75);
  EXPECT_NE(run.err().find("rp-launch: the time limit of 1 s is reached\n"), std::string::npos) << run.err();
}

TEST(Endings, AnInterruptedProgramIsNotQueuedAgain) {
  LaunchedRun run({"-n", "2", "TOY", "preempted"});
  ASSERT_TRUE(run.wait_for_output("ready"));
  run.send_signal(SIGINT);
  expect_quiet_end(run, 130);
}

TEST(Endings, TheSecondInterruptEndsADeafProgramWithinTwoSecondsAndTheThirdAtOnce) {
  for (const int num_interrupts : {2, 3}) {
    LaunchedRun run({"-n", "2", "TOY", "deaf"});
    ASSERT_TRUE(run.wait_for_output("ready"));
    for (int i = 0; i < num_interrupts; ++i) {
      run.send_signal(SIGINT);
      EXPECT_EQ(run.wait_for_end(0.2), i < 2 ? -1 : 130);
    }
    if (num_interrupts == 2) {
      EXPECT_EQ(run.wait_for_end(3), 130);
    }
    expect_one_dump(run, "interrupted");
    expect_nothing_left(run);
  }
}

TEST(Endings, AProgramThatStandsStillAfterAnInterruptIsDumpedOnceWithoutASecondOne) {
  LaunchedRun run({"-n", "2", "TOY", "deaf"});
  ASSERT_TRUE(run.wait_for_output("ready"));
  run.send_signal(SIGINT);
  EXPECT_EQ(run.wait_for_end(2), -1);
  EXPECT_EQ(run.err(), "");
  EXPECT_EQ(run.wait_for_end(6), -1);
  expect_one_dump(run, "interrupted, but nothing goes on");
  for (int i = 0; i < 2; ++i) run.send_signal(SIGINT);
  EXPECT_EQ(run.wait_for_end(3), 130);
  expect_one_dump(run, "interrupted, but nothing goes on");
  expect_nothing_left(run);
}

TEST(Endings, ACoordinatorThatAbortsIsReported) {
  LaunchedRun run({"-n", "2", "TOY", "abort"});
  EXPECT_EQ(run.wait_for_end(), 134);
  EXPECT_EQ(count_of(run.err(), "coordinator (pid"), 1) << run.err();
  EXPECT_EQ(count_of(run.err(), "SIGABRT"), 1);
  expect_nothing_left(run);
}

TEST(Endings, ACoordinatorThatCrashesIsReported) {
  LaunchedRun run({"-n", "2", "TOY", "segfault"});
  EXPECT_EQ(run.wait_for_end(), 139);
  EXPECT_EQ(count_of(run.err(), "coordinator (pid"), 1) << run.err();
  expect_nothing_left(run);
}

TEST(Endings, AWorkerThatCrashesInATaskIsReportedWithItsPlace) {
  LaunchedRun run({"-n", "3", "TOY", "crash_in_task"});
  EXPECT_EQ(run.wait_for_end(), 139);
  const std::string err = run.err();
  EXPECT_EQ(count_of(err, "worker 0 (pid"), 1) << err;
  EXPECT_EQ(count_of(err, "segmentation fault"), 1) << err;
  EXPECT_EQ(count_of(err, "task 12, fused stage of layers 3 to 4, layer 4, microbatch 7"), 1) << err;
  EXPECT_NE(err.find("          #"), std::string::npos) << err;
  EXPECT_LE(lines_of(err).size(), 12U);
  expect_nothing_left(run);
}

TEST(Endings, AWorkerThatFailsBeforeItAttachesShowsWhatItWroteAndNoOtherDoes) {
  LaunchedRun run({"-n", "3", "TOY", "crash_before_attach"});
  EXPECT_EQ(run.wait_for_end(), 139);
  EXPECT_EQ(run.out(), "before attach 0\n");
  EXPECT_EQ(count_of(run.err(), "during its start"), 1) << run.err();
  expect_nothing_left(run);
}

TEST(Endings, AnErrorThatEightWorkersHaveIsSaidOnce) {
  LaunchedRun run({"-n", "8", "TOY", "fail_all"});
  EXPECT_EQ(run.wait_for_end(), 1);
  EXPECT_EQ(count_of(run.err(), "layer 3 differs between the processes"), 1) << run.err();
  EXPECT_EQ(count_of(run.err(), "rp-launch:"), 1) << run.err();
  EXPECT_EQ(count_of(run.out(), "before attach"), 1) << run.out();
  expect_nothing_left(run);
}

TEST(Endings, AnExceptionThatAWorkerPrintedAndRecordedIsSaidOnce) {
  for (const std::vector<std::string>& options :
       std::vector<std::vector<std::string>>{{"-n", "4"}, {"-n", "4", "--tag-output"}}) {
    std::vector<std::string> words = options;
    words.insert(words.end(), {"TOY", "throw_all"});
    LaunchedRun run(words);
    EXPECT_EQ(run.wait_for_end(), 64);
    EXPECT_EQ(count_of(run.err(), "no file model.bin"), 1) << run.err();
    EXPECT_EQ(count_of(run.err(), "in any folder"), 1) << run.err();
    EXPECT_EQ(count_of(run.err(), "ended with exit code 64"), 1) << run.err();
    expect_nothing_left(run);
  }
}

TEST(Endings, AWorkerThatLeavesMainIsAFailureThoughItsCodeIsZero) {
  LaunchedRun run({"-n", "2", "TOY", "exit_before_attach"});
  EXPECT_EQ(run.wait_for_end(), 1);
  EXPECT_EQ(count_of(run.err(), "ended before the end of the run"), 1) << run.err();
  expect_nothing_left(run);
}

TEST(Endings, ACoordinatorThatDoesNotHeedTheLossOfAWorkerIsEnded) {
  LaunchedRun run({"-n", "2", "TOY", "crash_silently"});
  EXPECT_EQ(run.wait_for_end(5), 7);
  EXPECT_EQ(count_of(run.err(), "ended with exit code 7"), 1) << run.err();
  expect_nothing_left(run);
}

TEST(Endings, AWorkerThatDoesNotEndIsKilledAndNotReported) {
  LaunchedRun run({"-n", "2", "TOY", "ignore_end"});
  EXPECT_EQ(run.wait_for_end(5), 0);
  EXPECT_EQ(run.err(), "");
  expect_nothing_left(run);
}

TEST(Endings, AWorkerUnderAProfilerHasSecondsToWriteItsReport) {
  LaunchedRun watched({"-n", "2", "TOY", "long_end"}, {{"NSYS_PROFILING_SESSION_ID", "1"}});
  EXPECT_EQ(watched.wait_for_end(), 0) << watched.err();
  EXPECT_EQ(count_of(watched.out(), "report written"), 2);
  LaunchedRun plain({"-n", "2", "TOY", "long_end"});
  EXPECT_EQ(plain.wait_for_end(), 0) << plain.err();
  EXPECT_EQ(count_of(plain.out(), "report written"), 0) << "half a second is enough where nothing is to be written";
}

TEST(Endings, AKilledWorkerOrCoordinatorEndsTheRunWith137) {
  for (const std::size_t victim : {0U, 2U}) {  // the coordinator, worker 1
    LaunchedRun run({"-n", "2", "TOY", "hang"});
    ASSERT_TRUE(run.wait_for_output("ready"));
    const std::vector<pid_t> pids = printed_pids(run.out());
    ASSERT_EQ(pids.size(), 3U);
    kill(pids[victim], SIGKILL);
    EXPECT_EQ(run.wait_for_end(4), 137);
    EXPECT_EQ(count_of(run.err(), victim == 0 ? "coordinator (pid" : "worker 1 (pid"), 1) << run.err();
    EXPECT_EQ(count_of(run.err(), "SIGKILL"), 1) << run.err();
    expect_nothing_left(run);
  }
}

TEST(Endings, AWorkerThatDiesAfterTheEndOfTheRunCostsNothing) {
  for (const int signal_number : {SIGKILL, SIGSEGV}) {
    LaunchedRun run({"--on-worker-failure", "replay", "-n", "2", "TOY", "finish", "5"});
    ASSERT_TRUE(run.wait_for_output("ready"));
    kill(printed_pids(run.out()).at(2), signal_number);
    EXPECT_EQ(run.wait_for_end(4), 5);
    EXPECT_EQ(count_of(run.err(), "rp-launch: worker 1 (pid"), 1) << run.err();
    EXPECT_EQ(count_of(run.err(), "the run did not need it any more, so nothing is lost"), 1) << run.err();
    expect_nothing_left(run);
  }
  LaunchedRun strict({"--on-worker-failure", "abort", "-n", "2", "TOY", "finish", "5"});
  ASSERT_TRUE(strict.wait_for_output("ready"));
  kill(printed_pids(strict.out()).at(2), SIGKILL);
  EXPECT_EQ(strict.wait_for_end(4), 137);
}

TEST(Endings, WhenTheLauncherIsKilledNothingIsLeft) {
  LaunchedRun run({"-n", "8", "TOY", "hang"});
  ASSERT_TRUE(run.wait_for_output("ready"));
  EXPECT_EQ(run.processes().size(), 11U) << "with the launcher's watchdog";
  run.send_signal(SIGKILL);
  EXPECT_EQ(run.wait_for_end(), 137);
  expect_nothing_left(run);
}

// Also not what a run that is started by a run has started.
TEST(Endings, WhenTheLauncherIsKilledNoChildOfTheProgramIsLeft) {
  const std::string program = "setsid sleep 1000 & sleep 1000 & echo ready; wait";
  for (const std::string& script : {program, cat(RP_LAUNCH_PATH, " -n 1 /bin/sh -c '", program, "' & wait"),
                                    cat("setsid setsid sh -c '", program, "' & sleep 1000")}) {
    SCOPED_TRACE(script);
    LaunchedRun run({"-n", "1", "/bin/sh", "-c", script});
    ASSERT_TRUE(run.wait_for_output("ready"));
    run.send_signal(SIGKILL);
    EXPECT_EQ(run.wait_for_end(), 137);
    EXPECT_TRUE(run.all_gone_within(1));
    expect_nothing_left(run);
  }
}

// Simulates a process that cannot be killed: the end of a process under ptrace is reported to its
// tracer before its parent.
TEST(Endings, AWorkerThatCannotBeKilledDoesNotHoldUpTheExitCode) {
  LaunchedRun run({"-n", "2", "TOY", "hang"});
  ASSERT_TRUE(run.wait_for_output("ready"));
  const std::vector<pid_t> pids = printed_pids(run.out());
  ASSERT_EQ(pids.size(), 3U);
  if (ptrace(PTRACE_SEIZE, pids[2], nullptr, nullptr) != 0) GTEST_SKIP() << "needs the right to trace";
  kill(pids[0], SIGKILL);
  EXPECT_EQ(run.wait_for_end(15), 137);
  EXPECT_EQ(count_of(run.err(), "does not end after SIGKILL"), 1) << run.err();
  waitpid(pids[2], nullptr, __WALL);
  expect_nothing_left(run);
}

TEST(Endings, AChildOfTheProgramIsNotLeftEither) {
  LaunchedRun run({"-n", "1", "/bin/sh", "-c", "setsid sleep 1000 & sleep 1000 & exit 3"});
  EXPECT_EQ(run.wait_for_end(5), 3);
  expect_nothing_left(run);
}

}  // namespace
}  // namespace rp
