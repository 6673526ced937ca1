// Tests the programs of benchmarks/ that measure copies, registration, host functions and first
// launches, over a driver without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "benchmarks/bulk_traffic.h"
#include "benchmarks/first_launches.h"
#include "benchmarks/host_function_speed.h"
#include "benchmarks/registration.h"
#include "tests/cuda/fake_driver/fake_driver.h"

namespace rp::test {
namespace {

constexpr std::uint64_t kMib = std::uint64_t{1} << 20;

int num_enqueued(const FakeDriver& driver, const std::string& what) {
  int count = 0;
  for (const auto& stream : driver.log()) count += static_cast<int>(std::count(stream.begin(), stream.end(), what));
  return count;
}

BulkSettings small_traffic() {
  return {.bytes = 4 * kMib,
          .piece_bytes = {kMib, 2 * kMib},
          .under_way = {2, 3},
          .rounds = 1,
          .num_urgent = 3,
          .input_bytes = kMib / 2,
          .page_bytes = 4096};
}

TEST(BulkSpeeds, AreOfEachSizeAndNumberWithAndWithoutATraceInEachDirection) {
  FakeDriver driver;
  const std::vector<BulkSpeed> speeds = measure_bulk_speeds(driver.table(), small_traffic());
  std::set<std::tuple<std::string, std::uint64_t, std::uint64_t, bool>> found;
  int num_uncut = 0;
  for (const BulkSpeed& speed : speeds) {
    EXPECT_GT(speed.gbs, 0) << speed.direction;
    num_uncut += speed.is_cut ? 0 : 1;
    if (speed.is_cut) found.insert({speed.direction, speed.pieces.bytes, speed.pieces.under_way, speed.is_traced});
  }
  EXPECT_EQ(num_uncut, 3);
  EXPECT_EQ(found.size(), 3U * 2 * 2 * 2);
  EXPECT_EQ(speeds.size(), found.size() + 3);
  // In the streams of four directions ("both" has two), two sizes, two numbers, with and without a
  // trace: four pieces of 1 MiB, two of 2 MiB.
  EXPECT_EQ(num_enqueued(driver, "copy " + std::to_string(kMib)), 4 * 2 * 2 * 4);
  EXPECT_EQ(num_enqueued(driver, "copy " + std::to_string(2 * kMib)), 4 * 2 * 2 * 2);
  EXPECT_EQ(driver.registered_bytes(), 0U);
  EXPECT_EQ(driver.taken_bytes(), 0U);
}

TEST(BulkSpeeds, WithATraceHaveTwoHostFunctionsForEachPieceMore) {
  const auto num_calls = [](std::vector<std::uint64_t> under_way) {
    FakeDriver driver;
    BulkSettings settings = small_traffic();
    settings.under_way = std::move(under_way);
    (void)measure_bulk_speeds(driver.table(), settings);
    return driver.num_calls("cuLaunchHostFunc");
  };
  // Each piece is reported by one call. With a trace there are two more for each of the six pieces
  // of both sizes in four streams.
  const int once = num_calls({2}), twice = num_calls({2, 3});
  EXPECT_EQ(twice - once, 4 * 6 * (1 + 3));
}

TEST(UrgentDelays, AreMeasuredWithoutTrafficAndWithTrafficInPiecesAndWhole) {
  FakeDriver driver;
  const std::vector<UrgentDelay> delays = measure_urgent_delays(driver.table(), small_traffic());
  ASSERT_EQ(delays.size(), 3U);
  EXPECT_EQ(delays[0].traffic, "idle");
  EXPECT_EQ(delays[1].traffic, "yields");
  EXPECT_EQ(delays[2].traffic, "uncut");
  for (const UrgentDelay& delay : delays) {
    EXPECT_GT(delay.input_us, 0);
    EXPECT_GE(delay.longest_input_us, delay.input_us);
    EXPECT_GT(delay.page_us, 0);
    EXPECT_GE(delay.longest_page_us, delay.page_us);
  }
  EXPECT_EQ(num_enqueued(driver, "copy " + std::to_string(kMib / 2)), 3 * 3);
  EXPECT_EQ(num_enqueued(driver, "copy 4096"), 3 * 3);
  EXPECT_EQ(driver.taken_bytes(), 0U);
}

TEST(UrgentDelays, SayWhatFails) {
  FakeDriver driver;
  driver.fail("cuMemHostRegister", CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_THROW((void)measure_urgent_delays(driver.table(), small_traffic()), Error);
  driver.fail("cuMemcpyAsync", CUDA_ERROR_OUT_OF_MEMORY, 5);
  EXPECT_THROW((void)measure_urgent_delays(driver.table(), small_traffic()), Error);
}

TEST(HostFunctions, AreTimedOneByOneAndCountedOnOneAndOnSeveralStreams) {
  FakeDriver driver;
  const CudaContext context = CudaContext::open(driver.table(), "");
  const HostFunctionSpeed speed =
      measure_host_functions(context, {.num_latencies = 7, .num_streams = 3, .calls_of_each = 5});
  EXPECT_EQ(speed.latencies_us.size(), 7U);
  EXPECT_TRUE(std::is_sorted(speed.latencies_us.begin(), speed.latencies_us.end()));
  EXPECT_GT(speed.latencies_us.front(), 0);
  EXPECT_GT(speed.calls_per_s_on_one, 0);
  EXPECT_GT(speed.calls_per_s_on_several, 0);
  EXPECT_EQ(driver.num_calls("cuLaunchHostFunc"), 1 + 7 + 5 + 3 * 5) << "the first latency does not count";
}

RegistrationSettings small_store() {
  return {.bytes = kMib,
          .piece_bytes = kMib / 4,
          .max_attempts = 3,
          .pause_ns = 1000,
          .idle_ns = 1'000'000,
          .timeout_s = 60};
}

TEST(Registration, OfSeveralProcessesAtOnceIsTimedAndSoAreTheirCallsMeanwhile) {
  const auto driver = []() -> const CudaDriver& {
    static FakeDriver* const own = new FakeDriver();
    return own->table();
  };
  const RegistrationFigures figures = measure_registration(driver, 3, small_store());
  EXPECT_GT(figures.slowest_ns, 0);
  EXPECT_EQ(figures.failed_attempts, 0);
  EXPECT_EQ(figures.given_up, 0);
  for (const LongestCalls& calls : {figures.idle, figures.busy}) {
    EXPECT_GT(calls.launch_ns, 0);
    EXPECT_GT(calls.copy_ns, 0);
    EXPECT_GT(calls.mmap_ns, 0);
  }
}

TEST(Registration, CountsAttemptsThatFailAndPiecesThatAreGivenUp) {
  const auto once = []() -> const CudaDriver& {
    static FakeDriver* const own = [] {
      auto* const made = new FakeDriver();
      made->fail("cuMemHostRegister", CUDA_ERROR_OUT_OF_MEMORY, 2);
      return made;
    }();
    return own->table();
  };
  const RegistrationFigures cured = measure_registration(once, 2, small_store());
  EXPECT_EQ(cured.failed_attempts, 2) << "one in each process";
  EXPECT_EQ(cured.given_up, 0);
  // A store that ends within a page cannot be registered to its end.
  const auto whole = []() -> const CudaDriver& {
    static FakeDriver* const own = new FakeDriver();
    return own->table();
  };
  RegistrationSettings settings = small_store();
  settings.bytes += 100;
  const RegistrationFigures given_up = measure_registration(whole, 1, settings);
  EXPECT_EQ(given_up.given_up, 1);
  EXPECT_EQ(given_up.failed_attempts, settings.max_attempts);
}

TEST(Registration, OfAProcessWithoutAGpuIsNone) {
  const auto none = []() -> const CudaDriver& { throw Error(ExitCode::kNoResource, "no CUDA device"); };
  EXPECT_THROW((void)measure_registration(none, 2, small_store()), Error);
}

TEST(FirstLaunches, SayWhichWaitForAnotherStream) {
  FakeDriver driver;
  const CudaContext context = CudaContext::open(driver.table(), "");
  context.make_current();
  CUdeviceptr data = 0;
  ASSERT_EQ(driver.table().mem_alloc(&data, 4096), CUDA_SUCCESS);
  const FirstLaunch free_one{"set",
                             [&](CUstream stream) { (void)driver.table().memset_d8_async(data, 0, 256, stream); }};
  // Freeing memory waits for all streams, as loading a kernel does.
  const FirstLaunch waiting_one{"give back", [&](CUstream) {
                                  CUdeviceptr other = 0;
                                  (void)driver.table().mem_alloc(&other, 4096);
                                  (void)driver.table().mem_free(other);
                                }};
  const std::vector<FirstLaunchTime> beside = time_first_launches(context, {free_one, waiting_one, free_one}, 0.2);
  ASSERT_EQ(beside.size(), 3U);
  EXPECT_FALSE(beside[0].was_held_up || beside[0].was_held_up_again);
  EXPECT_TRUE(beside[1].was_held_up && beside[1].was_held_up_again);
  EXPECT_GE(beside[1].first_ms, 150);
  EXPECT_GE(beside[1].again_ms, 150);
  EXPECT_FALSE(beside[2].was_held_up) << "the next wait is one of its own";
  for (const FirstLaunchTime& time : time_first_launches(context, {free_one, waiting_one}, 0)) {
    EXPECT_FALSE(time.was_held_up || time.was_held_up_again) << time.what;
  }
  EXPECT_EQ(driver.num_calls("cuStreamWaitValue64"), 6);
  ASSERT_EQ(driver.table().mem_free(data), CUDA_SUCCESS);
}

TEST(FirstLaunches, NeedStreamsThatCanWaitForWords) {
  FakeDriver driver({.has_word_operations = false});
  const CudaContext context = CudaContext::open(driver.table(), "");
  EXPECT_THROW((void)time_first_launches(context, {}, 0.2), Error);
  EXPECT_TRUE(time_first_launches(context, {}, 0).empty());
}

}  // namespace
}  // namespace rp::test
