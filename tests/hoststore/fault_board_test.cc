#include "hoststore/records/fault_board.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "roundpipe/error.h"
#include "tests/hoststore/processes.h"

namespace rp {
namespace {

TEST(FaultBoard, WhatOneMappingWritesAnotherReads) {
  const FaultBoard writer = FaultBoard::create(3);
  const FaultBoard reader = FaultBoard::attach(UniqueFd(dup(writer.fd())));
  ASSERT_EQ(reader.num_entries(), 3);
  FaultBoardEntry entry = writer.entry(2);
  entry.publish_start(4711);
  entry.publish_task(
      {.epoch = 1, .slot = 12, .phase = Phase::kFused, .first_layer = 3, .end_layer = 5, .layer = 3, .microbatch = 0});
  entry.publish_layer(4, 7, "");
  entry.publish_advance();
  EXPECT_EQ(reader.entry(2).pid(), 4711);
  EXPECT_EQ(reader.entry(2).state(), ProcessState::kStarting);
  EXPECT_EQ(reader.entry(2).num_advances(), 2U);
  EXPECT_EQ(reader.entry(2).task().slot, 12);
  EXPECT_EQ(reader.entry(2).task().phase, Phase::kFused);
  EXPECT_EQ(reader.entry(2).task().layer, 4);
  EXPECT_EQ(reader.entry(2).task().microbatch, 7);
  EXPECT_EQ(reader.entry(1).pid(), 0);
  EXPECT_EQ(reader.entry(1).task().slot, -1);
}

TEST(FaultBoard, KeepsWhatTheLayerReadsUntilTheNextTask) {
  const FaultBoard board = FaultBoard::create(1);
  FaultBoardEntry entry = board.entry(0);
  EXPECT_EQ(entry.layer_inputs(), "");
  for (const std::string& text :
       {std::string("BFloat16[2, 16, 64], Long[2, 16]"), std::string("Float[1]"), std::string("Float")}) {
    entry.publish_layer(4, 7, text);
    EXPECT_EQ(entry.layer_inputs(), text);
  }
  entry.publish_layer(4, 7, std::string(1000, 'x'));
  EXPECT_EQ(entry.layer_inputs(), std::string(kLayerInputsBytes - 1, 'x'));
  entry.publish_task({.slot = 3});
  EXPECT_EQ(entry.layer_inputs(), "");
}

TEST(FaultBoard, OnlyTheFirstFaultOfAProcessIsKept) {
  const FaultBoard board = FaultBoard::create(1);
  EXPECT_TRUE(board.entry(0).record_fault(FaultKind::kError, 64, "first", "#0 here\n"));
  EXPECT_FALSE(board.entry(0).record_fault(FaultKind::kSignal, 11, "second"));
  const std::optional<Fault> fault = board.entry(0).fault();
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->kind, FaultKind::kError);
  EXPECT_EQ(fault->code, 64);
  EXPECT_EQ(fault->message, "first");
  EXPECT_EQ(fault->backtrace, "#0 here\n");
}

TEST(FaultBoard, TheNewestCrashNoticeIsReadAndWhatIsTooLongIsCut) {
  const FaultBoard writer = FaultBoard::create(2);
  const FaultBoard reader = FaultBoard::attach(UniqueFd(dup(writer.fd())));
  EXPECT_EQ(reader.entry(0).crash_notice(), "");
  FaultBoardEntry entry = writer.entry(0);
  for (const std::string& text :
       {std::string("the first, which is longer"), std::string("second"), std::string("third")}) {
    entry.publish_crash_notice(text);
    EXPECT_EQ(reader.entry(0).crash_notice(), text);
  }
  entry.publish_crash_notice(std::string(1000, 'x'));
  EXPECT_EQ(reader.entry(0).crash_notice(), std::string(kCrashNoticeBytes, 'x'));
  entry.publish_crash_notice("");
  EXPECT_EQ(reader.entry(0).crash_notice(), "");
  EXPECT_EQ(reader.entry(1).crash_notice(), "");
}

TEST(FaultBoard, AHalfWrittenFaultIsNeverRead) {
  const FaultBoard board = FaultBoard::create(1);
  FaultBoardEntry entry = board.entry(0);
  ASSERT_TRUE(entry.claim_fault());
  entry.set_fault(FaultKind::kSignal, 11, nullptr);
  entry.append_message("half");
  EXPECT_FALSE(entry.fault().has_value());
  entry.publish_fault();
  EXPECT_EQ(entry.fault()->message, "half");
}

TEST(FaultBoard, ATextThatIsTooLongIsCut) {
  const FaultBoard board = FaultBoard::create(1);
  board.entry(0).record_fault(FaultKind::kException, 1, std::string(2000, 'm'), std::string(9000, 'b'));
  EXPECT_EQ(board.entry(0).fault()->message, std::string(kFaultMessageBytes, 'm'));
  EXPECT_EQ(board.entry(0).fault()->backtrace, std::string(kFaultBacktraceBytes, 'b'));
}

TEST(FaultBoard, OfManyThreadsThatFailOneRecordsAndAReaderSeesItWhole) {
  const FaultBoard board = FaultBoard::create(1);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&board, i] {
      board.entry(0).record_fault(FaultKind::kError, i, std::string(500, static_cast<char>('a' + i)));
    });
  }
  std::optional<Fault> fault;
  while (!fault) fault = board.entry(0).fault();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fault->message, std::string(500, static_cast<char>('a' + fault->code)));
}

TEST(FaultBoard, AClearedEntryTakesTheFaultOfTheReplacement) {
  const FaultBoard board = FaultBoard::create(1);
  board.entry(0).record_fault(FaultKind::kError, 1, "old");
  board.entry(0).prepare_start();
  EXPECT_FALSE(board.entry(0).fault().has_value());
  EXPECT_TRUE(board.entry(0).record_fault(FaultKind::kError, 2, "new"));
}

TEST(FaultBoard, SaysForHowLongANodeHasWaitedForOthersUntilItsCoordinatorIsReplaced) {
  const FaultBoard board = FaultBoard::create(1);
  EXPECT_EQ(board.entry(0).observe_node_wait_ns(), 0);
  board.entry(0).publish_node_wait_ns(7'500'000'000);
  EXPECT_EQ(board.entry(0).observe_node_wait_ns(), 7'500'000'000);
  board.entry(0).publish_node_wait_ns(INT64_MAX);
  EXPECT_EQ(board.entry(0).observe_node_wait_ns(), UINT32_MAX * std::int64_t{1'000'000});
  board.entry(0).prepare_start();
  EXPECT_EQ(board.entry(0).observe_node_wait_ns(), 0);
}

TEST(FaultBoard, AFileOfAnotherFormatIsRefused) {
  UniqueFd fd(memfd_create("other", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(fd.get(), 3 * static_cast<off_t>(kFaultEntryBytes)), 0);
  EXPECT_THROW((void)FaultBoard::attach(std::move(fd)), Error);
  EXPECT_THROW((void)FaultBoard::attach(UniqueFd(memfd_create("empty", MFD_CLOEXEC))), Error);
}

TEST(FaultBoard, CannotBeShortened) {
  const FaultBoard board = FaultBoard::create(1);
  EXPECT_NE(ftruncate(board.fd(), 0), 0);
}

TEST(FaultBoard, IsMappedForReadingOnlyIfItsDescriptorIs) {
  const FaultBoard board = FaultBoard::create(1);
  board.entry(0).publish_start(17);
  UniqueFd fd(open(("/proc/self/fd/" + std::to_string(board.fd())).c_str(), O_RDONLY | O_CLOEXEC));
  const FaultBoard view = FaultBoard::attach(std::move(fd));
  EXPECT_EQ(view.entry(0).pid(), 17);
  const int status = test::status_of_process([&view] {
    view.entry(0).publish_start(18);
    return true;
  });
  EXPECT_NE(status, 0) << "a write must end the process";
  EXPECT_EQ(view.entry(0).pid(), 17);
}

}  // namespace
}  // namespace rp
