// Tests the logic of the measuring programs of benchmarks/ over a driver without a GPU, with sizes
// that need no time.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <ostream>
#include <string>

#include "benchmarks/dead_events.h"
#include "benchmarks/forked.h"
#include "benchmarks/signal_latency.h"
#include "benchmarks/store_bandwidth.h"
#include "tests/cuda/fake_driver/fake_driver.h"

namespace rp {
void PrintTo(SignalKind kind, std::ostream* out) {
  *out << std::array{"host", "words", "events"}[static_cast<std::size_t>(kind)];
}
}  // namespace rp

namespace rp::test {
namespace {

// The driver of a child process, which ends by _exit().
const CudaDriver& driver_of_process() {
  static FakeDriver* const driver = new FakeDriver();
  return driver->table();
}

TEST(StoreBandwidth, CopiesTheStoreInPiecesAndPlainMemoryAtOnce) {
  constexpr std::uint64_t kBytes = std::uint64_t{12} << 20;
  FakeDriver driver;
  const auto figures = measure_store_bandwidth(driver.table(), {.bytes = kBytes, .rounds = 1, .backing = "memfd"});
  ASSERT_EQ(figures.size(), 4U);
  for (const StoreBandwidth& figure : figures) {
    EXPECT_EQ(figure.store, "memfd");
    EXPECT_GT(figure.store_gbs, 0);
    EXPECT_GT(figure.pinned_gbs, 0);
  }
  EXPECT_GT(figures[0].staged_gbs, 0);
  std::map<std::string, int> copies;
  for (const auto& stream : driver.log()) {
    for (const std::string& line : stream) ++copies[line];
  }
  // Two rounds of four copies each: of the store in pieces of 4 MiB, and two more through the
  // pinned buffer.
  EXPECT_EQ(copies["copy " + std::to_string(4 << 20)], 2 * (4 + 2) * 3);
  EXPECT_EQ(copies["copy " + std::to_string(kBytes)], 2 * 4);
  EXPECT_EQ(driver.registered_bytes(), 0U);
  EXPECT_EQ(driver.taken_bytes(), 0U);
}

TEST(StoreBandwidth, SaysWhatTheGpuLacks) {
  const FakeDriver driver({.memory_bytes = 1 << 20});
  EXPECT_THROW((void)measure_store_bandwidth(driver.table(), {.bytes = 8 << 20, .rounds = 1, .backing = "memfd"}),
               Error);
}

class Latencies : public testing::TestWithParam<SignalKind> {};

TEST_P(Latencies, AreFromTheEndOfEachDownloadToTheStartOfItsUpload) {
  FakeDriver::share_between_processes();
  const SignalSettings settings{.rounds = 60, .bytes = 1 << 20, .pace_ns = 500'000, .timeout_s = 30};
  const std::vector<double> us = measure_latencies(driver_of_process, GetParam(), settings);
  ASSERT_EQ(us.size(), 40U);
  // Timestamps are taken next to the streams, so they are no earlier than the copy's end, which is
  // shortly before the other's start.
  for (const double each : us) EXPECT_LT(std::abs(each), 1e6);
}

TEST_P(Latencies, OfAProcessThatFailsAreNone) {
  FakeDriver::share_between_processes();
  const auto broken = []() -> const CudaDriver& {
    static FakeDriver* const driver = new FakeDriver({.memory_bytes = 4096});
    return driver->table();
  };
  EXPECT_THROW((void)measure_latencies(broken, GetParam(), {.rounds = 60, .bytes = 1 << 20, .timeout_s = 5}), Error);
}

INSTANTIATE_TEST_SUITE_P(Each, Latencies, testing::Values(SignalKind::kHost, SignalKind::kWords, SignalKind::kEvents),
                         [](const auto& info) { return testing::PrintToString(info.param); });

TEST(Polling, WaitsInOneStreamWhileAnotherCopies) {
  FakeDriver driver;
  const PollingCost cost = measure_polling(driver.table(), 1 << 20, 3);
  EXPECT_GT(cost.with_gbs, 0);
  EXPECT_GT(cost.without_gbs, 0);
  EXPECT_EQ(driver.num_calls("cuStreamWaitValue64"), 4);
  EXPECT_EQ(driver.num_calls("cuMemcpyAsync"), 8);
}

std::map<std::string, std::string> found(DeadCase which, int work_times) {
  FakeDriver::share_between_processes();
  std::map<std::string, std::string> result;
  for (const auto& [name, what] :
       try_dead_case(driver_of_process, which, {.work_bytes = 1 << 20, .work_times = work_times, .watch_s = 0.3})) {
    result[name] = what;
  }
  return result;
}

// The results of this test's driver say nothing about a real one. The test checks that each is seen
// and named.
TEST(DeadEvents, ThatWereNeverRecordedLookComplete) {
  const auto what = found(DeadCase::kNeverRecorded, 1);
  EXPECT_EQ(what.at("query_before"), "complete");
  EXPECT_EQ(what.at("wait_queued_before").substr(0, 6), "passed");
  EXPECT_EQ(what.at("query_after"), "complete");
  EXPECT_EQ(what.at("synchronize").substr(0, 8), "returned");
}

TEST(DeadEvents, OfWorkThatNeverEndsBlockEveryWaitAndAreWatched) {
  const auto what = found(DeadCase::kBeforeCompletion, 200000);
  EXPECT_EQ(what.at("query_before"), "not ready");
  for (const char* wait : {"wait_queued_before", "wait_queued_after", "synchronize"})
    EXPECT_EQ(what.at(wait), "blocked for 0.3 s") << wait;
  EXPECT_EQ(what.at("query_after"), "not ready");
}

TEST(DeadEvents, OfWorkThatIsDoneStayComplete) {
  const auto what = found(DeadCase::kAfterCompletion, 1);
  EXPECT_EQ(what.at("wait_queued_before").substr(0, 6), "passed");
  EXPECT_EQ(what.at("query_after"), "complete");
  EXPECT_EQ(what.at("wait_queued_after").substr(0, 6), "passed");
}

TEST(DeadEvents, WordsKeepWhatWasWritten) {
  const auto done = found(DeadCase::kWordAfterCompletion, 1);
  EXPECT_EQ(done.at("word"), "1");
  EXPECT_EQ(done.at("wait_queued_after").substr(0, 6), "passed");
  const auto undone = found(DeadCase::kWordBeforeCompletion, 200000);
  EXPECT_EQ(undone.at("word"), "0");
  EXPECT_EQ(undone.at("wait_queued_before"), "blocked for 0.3 s");
}

TEST(DeadEvents, AreNotTriedWithoutAGpu) {
  const auto none = []() -> const CudaDriver& { throw Error(ExitCode::kNoResource, "no CUDA device"); };
  EXPECT_THROW((void)try_dead_case(none, DeadCase::kNeverRecorded, {}), Error);
}

TEST(Forked, DiesWithWhoMadeIt) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  {
    Forked outer([&] {
      close(ends[0]);
      Forked inner([] { pause(); });
      close(ends[1]);
      _exit(0);  // no destructor
    });
    close(ends[1]);
    EXPECT_EQ(outer.join(Deadline::after_seconds(20)), 0);
  }
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 0) << "whoever still had the other end is gone";
  close(ends[0]);
}

TEST(Forked, IsKilledWhenItsDeadlinePasses) {
  EXPECT_EQ(Forked([] {}).join(Deadline::after_seconds(20)), 0);
  EXPECT_EQ(Forked([] { throw Error(ExitCode::kBadInput, "x"); }).join(Deadline::after_seconds(20)),
            static_cast<int>(ExitCode::kBadInput));
  EXPECT_EQ(Forked([] { pause(); }).join(Deadline::after_ns(1)), static_cast<int>(ExitCode::kHang));
}

}  // namespace
}  // namespace rp::test
