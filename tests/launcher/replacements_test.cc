#include "launcher/replacements.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace rp {
namespace {

using Decision = Replacements::Decision;

constexpr int exit_status(int code) { return code << 8; }

TEST(Replacements, AreMadeUntilNoneIsLeftThenTheRunShrinks) {
  Replacements replacements(WorkerFailurePolicy::kReplay, 2);
  EXPECT_EQ(replacements.decide({.worker = 0, .status = SIGKILL, .slot = 1}, 3), Decision::kReplace);
  EXPECT_EQ(replacements.decide({.worker = 1, .status = SIGSEGV, .slot = 2}, 3), Decision::kReplace);
  EXPECT_EQ(replacements.decide({.worker = 1, .status = SIGKILL}, 3), Decision::kShrink);
  EXPECT_EQ(replacements.decide({.worker = 2, .status = SIGKILL}, 0), Decision::kEndRun) << "no worker is left";
}

TEST(Replacements, AreNotMadeByTheOtherPolicies) {
  Replacements abort(WorkerFailurePolicy::kAbort, 3);
  EXPECT_EQ(abort.decide({.status = SIGKILL}, 3), Decision::kEndRun);
  Replacements shrink(WorkerFailurePolicy::kShrink, 3);
  EXPECT_EQ(shrink.decide({.status = SIGKILL}, 3), Decision::kShrink);
  EXPECT_EQ(shrink.decide({.status = SIGKILL}, 0), Decision::kEndRun);
}

TEST(Replacements, AreNotMadeForAWorkerThatEndedWithACodeOfItsOwnExceptHangsAndFaultsOfGpus) {
  Replacements replacements(WorkerFailurePolicy::kReplay, 3);
  for (const int code : {0, 1, 69}) EXPECT_EQ(replacements.decide({.status = exit_status(code)}, 3), Decision::kEndRun);
  for (const int code : {71, 124}) EXPECT_EQ(replacements.decide({.status = exit_status(code)}, 3), Decision::kReplace);
  const auto decide = [&](bool has_served, bool replaces) {
    return replacements.decide({.status = exit_status(71), .has_served = has_served, .replaces = replaces}, 3);
  };
  EXPECT_EQ(decide(false, false), Decision::kEndRun) << "a GPU that does not work at all";
  EXPECT_EQ(decide(false, true), Decision::kReplace);
}

TEST(Replacements, ThatCannotStartAreDoneWithout) {
  Replacements replacements(WorkerFailurePolicy::kReplay, 3);
  const auto decide = [&](int code, bool has_served, int num_left) {
    return replacements.decide({.status = exit_status(code), .has_served = has_served, .replaces = true}, num_left);
  };
  for (const int code : {1, 64, 69, 127}) EXPECT_EQ(decide(code, false, 2), Decision::kShrink);
  EXPECT_EQ(decide(64, false, 0), Decision::kEndRun) << "no worker is left";
  EXPECT_EQ(decide(1, true, 2), Decision::kEndRun) << "an error of the run";
}

TEST(Replacements, SetATaskAsideThatHasEndedThreeWorkers) {
  Replacements replacements(WorkerFailurePolicy::kReplay, 6);  // the last of them are needed elsewhere
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(replacements.decide({.worker = i, .status = SIGSEGV, .slot = 17}, 3), Decision::kReplace);
    EXPECT_EQ(replacements.decide({.worker = i, .status = SIGSEGV}, 3), Decision::kReplace) << "between two tasks";
  }
  EXPECT_EQ(replacements.decide({.worker = 2, .status = SIGKILL, .slot = 17}, 3), Decision::kReplace)
      << "not its doing";
  EXPECT_EQ(replacements.decide({.worker = 2, .status = SIGKILL, .slot = 17, .out_of_memory = true}, 3),
            Decision::kSetAside);
  EXPECT_EQ(replacements.decide({.worker = 0, .status = SIGKILL}, 3), Decision::kReplace)
      << "what is before it goes on";
}

TEST(Replacements, StartLaterEachTimeUntilOneServes) {
  Replacements replacements(WorkerFailurePolicy::kReplay, 1000);
  const auto delay = [&](bool has_served) {
    (void)replacements.decide({.worker = 0, .status = SIGKILL, .has_served = has_served}, 3);
    return replacements.delay_ns(0);
  };
  for (int i = 0; i < 10; ++i) EXPECT_EQ(delay(true), 0);
  EXPECT_EQ(delay(false), kNsPerSecond / 2);
  EXPECT_EQ(delay(false), kNsPerSecond);
  EXPECT_EQ(replacements.delay_ns(1), 0);
  for (int i = 0; i < 100; ++i) EXPECT_LE(delay(false), 16 * kNsPerSecond);
  EXPECT_EQ(delay(true), 0);
}

}  // namespace
}  // namespace rp
