#include "hoststore/records/wait_record.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <string>
#include <thread>

#include "common/system/clock.h"
#include "hoststore/records/fault_board.h"

namespace rp {
namespace {

static_assert(offsetof(WaitFormat, kind) == 4);
static_assert(offsetof(WaitFormat, since_ns) == 8);
static_assert(offsetof(WaitFormat, slot) == 16);
static_assert(offsetof(WaitFormat, numbers) == 24);

TEST(WaitRecord, WhatAProcessWaitedForIsReadAfterItsDeath) {
  const FaultBoard board = FaultBoard::create(2);
  const std::int64_t before = now_ns();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    board.entry(1)
        .waits(WorkerThread::kInputUploader)
        .publish({.kind = WaitKind::kInputs, .slot = 58, .numbers = {2, 1, 4, 3}});
    raise(SIGKILL);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const auto wait = board.entry(1).waits(WorkerThread::kInputUploader).observe();
  ASSERT_TRUE(wait.has_value());
  EXPECT_EQ(wait->slot, 58);
  EXPECT_EQ(wait->text(), "microbatch 2 of the gradient of the outputs of layer 3 from worker 3");
  EXPECT_GE(wait->since_ns, before);
  EXPECT_LE(wait->since_ns, now_ns());
  EXPECT_FALSE(board.entry(1).waits(WorkerThread::kStageRunner).observe().has_value());
  EXPECT_FALSE(board.entry(0).waits(CoordinatorThread::kCommit).observe().has_value());
}

TEST(WaitRecord, AWriterThatDiedWhileItWroteIsNoWaitAndItsPlaceCanBeUsedAgain) {
  WaitFormat format{};
  WaitRecord record(&format);
  record.publish({.kind = WaitKind::kNextTask});
  format.sequence.fetch_add(1);
  EXPECT_FALSE(record.observe().has_value());
  record.publish({.kind = WaitKind::kOwnWeights});
  ASSERT_TRUE(record.observe().has_value());
  EXPECT_EQ(record.observe()->kind, WaitKind::kOwnWeights);
}

TEST(WaitRecord, AReaderNeverGetsPartsOfTwoWaits) {
  WaitFormat format{};
  std::thread writer([&format] {
    WaitRecord record(&format);
    for (std::int64_t i = 1; i <= 20'000; ++i) {
      record.publish({.kind = WaitKind::kWeights, .slot = i, .numbers = {i, i, i, i}});
      if (i % 3 == 0) record.publish_none();
    }
    record.publish({.kind = WaitKind::kNextTask});
  });
  const WaitRecord record(&format);
  while (true) {
    const auto wait = record.observe();
    if (!wait) continue;
    if (wait->kind == WaitKind::kNextTask) break;
    ASSERT_EQ(wait->kind, WaitKind::kWeights);
    for (const std::int64_t number : wait->numbers) ASSERT_EQ(number, wait->slot);
  }
  writer.join();
}

TEST(WaitRecord, ALoopAroundAConditionKeepsTheTimeOfItsFirstSleep) {
  WaitFormat format{};
  WaitRecord record(&format);
  record.publish_once({.kind = WaitKind::kCommits});
  const std::int64_t since = record.observe()->since_ns;
  record.publish_once({.kind = WaitKind::kCommits});
  EXPECT_EQ(record.observe()->since_ns, since);
  // The thread was interrupted in a wait and now waits for something else.
  for (const std::int64_t worker : {1, 2}) {
    record.publish_once({.kind = WaitKind::kWorkerStart, .numbers = {worker}});
    EXPECT_EQ(record.observe()->kind, WaitKind::kWorkerStart);
    EXPECT_EQ(record.observe()->numbers[0], worker);
  }
  record.publish_none();
  EXPECT_FALSE(record.observe().has_value());
}

TEST(WaitRecord, WithoutABoardNothingIsWritten) {
  WaitRecord record;
  record.publish({.kind = WaitKind::kCommits});
  record.publish_none();
  EXPECT_FALSE(record.observe().has_value());
  EXPECT_FALSE(FaultBoard::create(1).entry(0).waits(kMaxBoardWaits).observe().has_value());  // there are more pipelines
                                                                                             // than records
}

TEST(WaitRecord, EveryKindHasWords) {
  for (std::uint32_t kind = 0; kind < kWaitKinds; ++kind) {
    EXPECT_EQ((Wait{.kind = static_cast<WaitKind>(kind)}.text().find("does not know")), std::string::npos) << kind;
  }
  EXPECT_NE((Wait{.kind = static_cast<WaitKind>(kWaitKinds)}.text().find("does not know")), std::string::npos);
}

TEST(WaitRecord, AnEvaluationIsNamedByItsOwnNumber) {
  EXPECT_EQ(round_text(7), "round 7");
  EXPECT_EQ((Wait{.kind = WaitKind::kRoundEnd, .slot = 9, .numbers = {(std::int64_t{1} << 48) + 3}}.text()),
            "the end of evaluation 3, slot 9");
}

TEST(WaitRecord, TheReplacementOfAProcessBeginsWithoutWaits) {
  const FaultBoard board = FaultBoard::create(1);
  FaultBoardEntry entry = board.entry(0);
  entry.waits(WorkerThread::kWeightUploader).publish({.kind = WaitKind::kNextTask});
  entry.publish_progress({.accepted = 4, .dispatched = 3, .committed = 2, .round = 1, .step = 1});
  EXPECT_EQ(entry.progress().committed, 2);
  entry.prepare_start();
  EXPECT_FALSE(entry.waits(WorkerThread::kWeightUploader).observe().has_value());
  EXPECT_EQ(entry.progress().accepted, 0);
  EXPECT_EQ(entry.progress().round, -1);
}

}  // namespace
}  // namespace rp
