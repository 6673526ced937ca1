#include "hoststore/records/trace_journal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <thread>

#include "roundpipe/error.h"
#include "tests/common/temp_directory.h"
#include "tests/hoststore/processes.h"

namespace rp {
namespace {

static_assert(offsetof(TraceRecord, begin_ns) == 8 && offsetof(TraceRecord, slot) == 24);
static_assert(offsetof(TraceRecord, pipeline) == 32 && offsetof(TraceRecord, numbers) == 48);
static_assert(offsetof(TraceHeader, num_pieces) == 24);
static_assert(offsetof(TraceHeader, program) == 48 && offsetof(TraceHeader, device) == 176);

class TraceJournalTest : public testing::Test {
 protected:
  static TraceRecord record(std::int64_t begin_ns) {
    return {.kind = TraceKind::kCompute, .begin_ns = begin_ns, .end_ns = begin_ns + 1, .slot = begin_ns};
  }
  // Returns the slots of a track's records, in order.
  std::vector<std::int64_t> slots(std::uint32_t process, std::uint32_t track) const {
    std::vector<std::int64_t> found;
    for (const TraceJournal::Piece& piece : journal_.pieces()) {
      if (piece.process != process || piece.track != track) continue;
      for (const TraceRecord& r : journal_.records(piece)) found.push_back(r.slot);
    }
    return found;
  }
  static std::vector<std::int64_t> count_to(std::int64_t end) {
    std::vector<std::int64_t> numbers;
    for (std::int64_t i = 0; i < end; ++i) numbers.push_back(i);
    return numbers;
  }

  TempDirectory directory_;
  TraceJournal journal_ =
      TraceJournal::create(directory_.path(), {.program = "a program", .device = "cpu", .num_workers = 3});
};

TEST_F(TraceJournalTest, KeepsTheOrderOfEachTrackOverManyPiecesOfSeveralThreads) {
  const auto num = static_cast<std::int64_t>(3 * kTraceRecordsPerPiece + 7);
  const auto write = [&](std::uint32_t track) {
    TraceTrack writer(&journal_, 2, track);
    for (std::int64_t i = 0; i < num; ++i) writer.add(record(i));
  };
  std::thread first([&] { write(1); });
  std::thread second([&] { write(4); });
  first.join();
  second.join();
  EXPECT_EQ(slots(2, 1), count_to(num));
  EXPECT_EQ(slots(2, 4), count_to(num));
  EXPECT_EQ(journal_.pieces().size(), 8u);
  EXPECT_FALSE(journal_.is_full());
}

TEST_F(TraceJournalTest, WhatAProcessWroteIsThereAfterItWasKilled) {
  const int status = test::status_of_process([&]() -> bool {
    TraceJournal mine = TraceJournal::attach(UniqueFd(dup(journal_.fd())));
    TraceTrack writer(&mine, 1, 1);
    for (std::int64_t i = 0; i < 5; ++i) writer.add(record(i));
    raise(SIGKILL);
    return true;
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(slots(1, 1), count_to(5));
}

TEST_F(TraceJournalTest, APieceThatItsProcessDidNotBeginAndARecordThatItDidNotEndAreNone) {
  {
    TraceTrack writer(&journal_, 1, 1);
    writer.add(record(0));
    writer.add(record(1));
  }
  // The second record becomes one whose writer died before it set the kind. The second piece has no
  // header.
  const auto place = static_cast<off_t>(kTraceHeaderBytes + sizeof(TracePieceHeader) + sizeof(TraceRecord));
  const std::uint32_t none = 0;
  ASSERT_EQ(pwrite(journal_.fd(), &none, sizeof(none), place), static_cast<ssize_t>(sizeof(none)));
  std::uint64_t num_pieces = 3;
  ASSERT_EQ(pwrite(journal_.fd(), &num_pieces, sizeof(num_pieces), offsetof(TraceHeader, num_pieces)), 8);
  ASSERT_EQ(ftruncate(journal_.fd(), static_cast<off_t>(kTraceHeaderBytes + 2 * kTracePieceBytes)), 0);
  EXPECT_EQ(slots(1, 1), count_to(1));
  EXPECT_EQ(journal_.pieces().size(), 1u);
}

TEST_F(TraceJournalTest, EndsWhereTheDiskIsFullAndTheWriterGoesOn) {
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit limit = before;
  limit.rlim_cur = kTraceHeaderBytes + kTracePieceBytes;
  setrlimit(RLIMIT_FSIZE, &limit);
  testing::internal::CaptureStderr();
  {
    TraceTrack first(&journal_, 1, 1);
    TraceTrack second(&journal_, 1, 2);
    for (std::size_t i = 0; i < 3 * kTraceRecordsPerPiece; ++i) {
      first.add(record(static_cast<std::int64_t>(i)));
      second.add(record(0));
    }
  }
  setrlimit(RLIMIT_FSIZE, &before);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(journal_.is_full());
  EXPECT_EQ(slots(1, 1), count_to(kTraceRecordsPerPiece));
  EXPECT_TRUE(slots(1, 2).empty());
  EXPECT_EQ(said.find("warning"), said.rfind("warning")) << said;
  EXPECT_NE(said.find("the run goes on"), std::string::npos) << said;
}

TEST_F(TraceJournalTest, PiecesOfACopyAreOneRecordUnlessSomethingComesBetweenThem) {
  {
    TraceTrack track(&journal_, 1, 4);
    const auto part = [](std::int64_t slot, std::int64_t begin_ns) {
      return TraceRecord{.kind = TraceKind::kDownloadGradient,
                         .begin_ns = begin_ns,
                         .end_ns = begin_ns + 100'000,
                         .slot = slot,
                         .numbers = {64, 3}};
    };
    track.add_part(part(0, 0));
    track.add_part(part(0, 100'001));
    track.add_part(part(0, 200'002 + kLeastTracedGapNs));  // the stream was idle
    track.add_part(part(1, 400'000));                      // another copy
    track.add({.kind = TraceKind::kDownloadOutput, .begin_ns = 500'000, .end_ns = 500'010, .slot = 2});
    track.add_part(part(1, 500'010));
  }
  ASSERT_EQ(slots(1, 4), (std::vector<std::int64_t>{0, 0, 1, 2, 1}));
  const std::vector<TraceRecord> records = journal_.records(journal_.pieces()[0]);
  EXPECT_EQ(records[0].end_ns, 200'001);
  EXPECT_EQ(records[0].numbers[0], 128);
  EXPECT_EQ(records[1].numbers[0], 64);
  EXPECT_EQ(records[4].begin_ns, 500'010);
}

TEST_F(TraceJournalTest, OnlyWaitsThatAreLongEnoughAreRecorded) {
  WaitFormat format{};
  TraceTrack track(&journal_, 1, 5);
  WaitRecord waits = WaitRecord(&format).traced_by(&track);
  waits.publish({.kind = WaitKind::kWeights, .slot = 4, .numbers = {7, 8}});
  const Deadline enough = Deadline::after_ns(2 * kLeastTracedWaitNs);
  while (!enough.passed()) {}
  waits.publish_none();
  waits.publish_none();  // does nothing, because no wait is published
  track.add_wait({.kind = WaitKind::kInputs, .slot = 5, .since_ns = now_ns() + kNsPerSecond});
  ASSERT_EQ(slots(1, 5), std::vector<std::int64_t>{4});
  const TraceRecord wait = journal_.records(journal_.pieces()[0])[0];
  EXPECT_EQ(wait.kind, TraceKind::kWait);
  EXPECT_EQ(static_cast<WaitKind>(wait.detail), WaitKind::kWeights);
  EXPECT_EQ(wait.numbers[1], 8);
  EXPECT_GE(wait.end_ns - wait.begin_ns, 2 * kLeastTracedWaitNs);
}

TEST_F(TraceJournalTest, WithoutAJournalNothingIsRecorded) {
  TraceTrack track(nullptr, 0, 1);
  EXPECT_FALSE(track.is_on());
  EXPECT_EQ(track.now(), 0);
  track.add(record(1));
  track.add_wait({.kind = WaitKind::kWeights});
  EXPECT_TRUE(journal_.pieces().empty());
}

TEST(TraceJournal, OfAnotherFormatOrInAPlaceThatCannotBeWrittenIsRefused) {
  TempDirectory directory;
  TraceJournal journal = TraceJournal::create(directory.path(), {});
  EXPECT_TRUE(std::filesystem::is_empty(directory.path())) << "it has no name";
  const std::uint64_t magic = 1;
  ASSERT_EQ(pwrite(journal.fd(), &magic, sizeof(magic), 0), 8);
  EXPECT_THROW((void)TraceJournal::attach(UniqueFd(dup(journal.fd()))), Error);
  try {
    (void)TraceJournal::create("/proc/self", {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kOutputFailed);
  }
}

}  // namespace
}  // namespace rp
