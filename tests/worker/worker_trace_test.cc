#include "worker/observers/worker_trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>

#include "common/text.h"
#include "tests/common/temp_directory.h"
#include "tests/worker/worker_harness.h"
#include "worker/observers/copy_trace.h"

namespace rp {
namespace {

class WorkerTraceTest : public testing::Test {
 protected:
  std::vector<TraceRecord> records(WorkerTrack track) const {
    std::vector<TraceRecord> found;
    for (const TraceJournal::Piece& piece : journal_.pieces()) {
      if (piece.process != 1 || piece.track != static_cast<std::uint32_t>(track)) continue;
      for (const TraceRecord& r : journal_.records(piece)) found.push_back(r);
    }
    return found;
  }
  // Returns the records of a track as "kind:slot:microbatch".
  std::vector<std::string> names(WorkerTrack track) const {
    std::vector<std::string> found;
    for (const TraceRecord& r : records(track))
      found.push_back(cat(static_cast<int>(r.kind), ":", r.slot, ":", r.microbatch));
    return found;
  }

  TempDirectory directory_;
  TraceJournal journal_ = TraceJournal::create(directory_.path(), {});
};

TEST_F(WorkerTraceTest, HasEachTaskMicrobatchAndCopyOnceOnTheTrackOfWhoDidIt) {
  {
    test::ServedWorker worker({}, &journal_);
    worker.start();
    worker.push(test::forward_command());
    worker.table.source(BlockKind::kActivation, 1) = {.worker = 0, .first_event = EventInEpoch(0)};
    worker.push(test::fused_command());
    RingReader<Completion> ring = worker.store->completion_reader(0);
    Completion completion;
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(ring.wait(kLong), WaitResult::kReached);
      ASSERT_TRUE(ring.try_pop(completion));
    }
    worker.finish();
  }
  const auto name = [](TraceKind kind, int slot, int microbatch) {
    return cat(static_cast<int>(kind), ":", slot, ":", microbatch);
  };
  EXPECT_EQ(names(WorkerTrack::kCompute),
            (std::vector<std::string>{name(TraceKind::kCompute, 0, 0), name(TraceKind::kCompute, 0, 1),
                                      name(TraceKind::kTask, 0, -1), name(TraceKind::kCompute, 1, 0),
                                      name(TraceKind::kCompute, 1, 1), name(TraceKind::kTask, 1, -1)}));
  EXPECT_EQ(names(WorkerTrack::kUploadWeights),
            (std::vector<std::string>{name(TraceKind::kUploadWeights, 0, -1), name(TraceKind::kUploadWeights, 1, -1)}));
  EXPECT_EQ(names(WorkerTrack::kDownload),
            (std::vector<std::string>{name(TraceKind::kDownloadOutput, 0, 0), name(TraceKind::kDownloadOutput, 0, 1),
                                      name(TraceKind::kDownloadGradient, 1, -1)}));
  const std::vector<TraceRecord> inputs = records(WorkerTrack::kUploadInputs);
  ASSERT_EQ(inputs.size(), 6u) << "the activation of each task, and the loss's arguments, by microbatch";
  const std::vector<TraceRecord> outputs = records(WorkerTrack::kDownload);
  for (const TraceRecord& r : inputs) {
    EXPECT_GT(r.numbers[0], 0);
    if (r.slot == 0 || r.detail == static_cast<std::uint32_t>(BlockKind::kArguments)) {
      EXPECT_EQ(r.numbers[1], -1) << "made by the coordinator";
    } else {
      EXPECT_EQ(r.numbers[1], 0) << "made by slot 0";
      EXPECT_GE(r.begin_ns, outputs.at(r.microbatch).end_ns);
    }
  }
}

TEST_F(WorkerTraceTest, CopiesThatTwoThreadsEnqueueDoNotOverlapAndNoneIsLost) {
  CpuDevice device;
  Stream& stream = device.stream(StreamKind::kDownload);
  TraceTrack track(&journal_, 1, static_cast<std::uint32_t>(WorkerTrack::kDownload));
  CopyTrace trace(stream, journal_, track);
  constexpr std::int64_t kNum = 4000;
  std::vector<std::byte> from(1 << 16);
  const auto enqueue = [&](std::int64_t thread) {
    std::vector<std::byte> to(from.size());
    for (std::int64_t i = 0; i < kNum; ++i) {
      CopyTrace::Copy* const copy = trace.begin();
      ASSERT_NE(copy, nullptr);
      stream.copy(to.data(), from.data(), to.size());
      trace.end(*copy, {.kind = TraceKind::kDownloadOutput, .slot = thread * kNum + i});
    }
    stream.drain();
  };
  std::thread first([&] { enqueue(0); });
  std::thread second([&] { enqueue(1); });
  first.join();
  second.join();
  const std::vector<TraceRecord> found = records(WorkerTrack::kDownload);
  ASSERT_EQ(found.size(), static_cast<std::size_t>(2 * kNum));
  EXPECT_EQ(journal_.num_dropped(), 0u);
  std::map<std::int64_t, int> seen;
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(++seen[found[i].slot], 1);
    EXPECT_LE(found[i].begin_ns, found[i].end_ns);
    if (i > 0) {
      EXPECT_GE(found[i].begin_ns, found[i - 1].end_ns);
    }
  }
}

// A stream that calls no function until it is drained.
class LateStream : public Stream {
 public:
  void copy(std::byte*, const std::byte*, std::uint64_t) override {}
  void signal(SequenceWord& word, std::uint64_t value) override { word.publish(value); }
  void call(void (*function)(void*), void* argument) override { calls_.emplace_back(function, argument); }
  void drain() override {
    for (const auto& [function, argument] : std::exchange(calls_, {})) function(argument);
  }

 private:
  std::vector<std::pair<void (*)(void*), void*>> calls_;
};

TEST_F(WorkerTraceTest, OfAStreamThatIsFarBehindWhatHasNoPlaceIsDroppedAndCounted) {
  LateStream stream;
  TraceTrack track(&journal_, 1, static_cast<std::uint32_t>(WorkerTrack::kDownload));
  CopyTrace trace(stream, journal_, track);
  int num_kept = 0;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 1500; ++i) {
      CopyTrace::Copy* const copy = trace.begin();
      if (copy == nullptr) continue;
      trace.end(*copy, {.kind = TraceKind::kDownloadOutput, .slot = ++num_kept});
    }
    stream.drain();
  }
  EXPECT_EQ(records(WorkerTrack::kDownload).size(), static_cast<std::size_t>(num_kept));
  EXPECT_EQ(journal_.num_dropped() + static_cast<std::uint64_t>(num_kept), 3000u);
  EXPECT_EQ(num_kept, 2048);
}

}  // namespace
}  // namespace rp
