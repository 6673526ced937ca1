#include "launcher/ending.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace rp {
namespace {

int exited(int code) { return code << 8; }

TEST(Ending, TheCoordinatorsEndIsTheRunsEnd) {
  EXPECT_EQ(exit_code_of_run({.coordinator_status = exited(0)}), 0);
  EXPECT_EQ(exit_code_of_run({.coordinator_status = exited(64)}), 64);
  EXPECT_EQ(exit_code_of_run({.coordinator_status = SIGSEGV}), 139);
}

TEST(Ending, AFailedWorkerComesFirst) {
  EXPECT_EQ(exit_code_of_run({.coordinator_status = exited(0), .failed_worker_status = SIGKILL}), 137);
  EXPECT_EQ(exit_code_of_run({.coordinator_status = exited(1), .failed_worker_status = exited(69)}), 69);
  EXPECT_EQ(exit_code_of_run({.coordinator_status = exited(1), .failed_worker_status = exited(0)}), 1);
}

TEST(Ending, PreemptionNeedsASavedStateAndAPreemptingSignal) {
  for (const int number : {SIGTERM, SIGHUP, SIGUSR1}) {
    for (const int status : {number, exited(128 + number), exited(0), exited(75)}) {
      EXPECT_EQ(exit_code_of_run({.coordinator_status = status, .preempted = true, .stop_signals = {number}}), 75);
    }
    EXPECT_EQ(exit_code_of_run({.coordinator_status = number, .stop_signals = {number}}), 128 + number);
    EXPECT_EQ(exit_code_of_run({.coordinator_status = exited(1), .preempted = true, .stop_signals = {number}}), 1);
  }
  EXPECT_EQ(exit_code_of_run({.coordinator_status = exited(130), .preempted = true, .stop_signals = {SIGINT}}), 130);
  EXPECT_EQ(exit_code_of_run({.coordinator_status = exited(0), .preempted = true, .stop_signals = {SIGINT}}), 0);
}

TEST(Ending, ARunThatRepeatedInterruptsCutShortIsInterrupted) {
  EXPECT_EQ(exit_code_of_run({.coordinator_status = SIGKILL, .cut_short = true}), 130);
}

}  // namespace
}  // namespace rp
