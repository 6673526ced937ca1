// Tests when emulated computations run. The tests pass the time.
#include "worker/executor/emulated_stage_executor.h"

#include <gtest/gtest.h>

namespace rp {
namespace {

constexpr CopyTimes there_at(std::int64_t ns) { return {.enqueued_ns = ns, .end_ns = ns}; }

TEST(ComputeClock, BeginsWhenEverythingIsThere) {
  ComputeClock clock;
  EXPECT_EQ(clock.run(100, there_at(1000), 1000).start_ns, 1000);
  EXPECT_EQ(clock.end_ns(), 1100);
  EXPECT_EQ(clock.run(100, there_at(1500), 1400).start_ns, 1500) << "launched behind an upload that is under way";
  const ComputeTimes times = clock.take_times();
  EXPECT_EQ(times.busy_ns, 200);
  EXPECT_EQ(times.dispatch_ns, 0);
  EXPECT_EQ(clock.take_times().busy_ns, 0);
}

// The host thread wakes 30 late again and again, but the GPU has the work queued.
TEST(ComputeClock, DoesNotAddDelaysOfTheHostThatQueuedWorkHides) {
  ComputeClock clock;
  clock.run(100, there_at(1000), 1000);
  for (int i = 1; i <= 10; ++i) EXPECT_EQ(clock.run(100, there_at(1000), 1000 + 100 * i + 30).start_ns, 1000 + 100 * i);
  EXPECT_EQ(clock.take_times().dispatch_ns, 0);
}

TEST(ComputeClock, CountsADelayThatIsLongerThanWhatWasQueued) {
  ComputeClock clock;
  clock.run(100, there_at(1000), 1000);
  EXPECT_EQ(clock.run(100, there_at(1000), 1250).start_ns, 1150);
  EXPECT_EQ(clock.take_times().dispatch_ns, 50);
}

TEST(ComputeClock, CountsALaunchThatComesAfterTheUploadThatItWaitedFor) {
  ComputeClock clock;
  clock.run(100, there_at(1000), 1000);
  const ComputeSpan span = clock.run(100, there_at(2000), 2040);
  EXPECT_EQ(span.free_ns, 1100);
  EXPECT_EQ(span.start_ns, 2040);
  EXPECT_EQ(span.end_ns, 2140);
  EXPECT_EQ(clock.take_times().dispatch_ns, 40);
}

// The engine is idle from 1100 to 2000. Until 1700 the data could not be uploaded yet.
TEST(ComputeClock, CallsOnlyTheUploadItselfExposed) {
  ComputeClock clock;
  clock.run(100, there_at(1000), 1000);
  clock.run(100, {.enqueued_ns = 1700, .end_ns = 2000}, 1700);
  EXPECT_EQ(clock.take_times().exposed_ns, 300);
  clock.run(100, {.enqueued_ns = 1000, .end_ns = 2500}, 2200);  // in progress long before the engine is free, at 2100
  EXPECT_EQ(clock.take_times().exposed_ns, 400);
  clock.run(100, {.enqueued_ns = 1000, .end_ns = 2550}, 2560);  // hidden
  EXPECT_EQ(clock.take_times().exposed_ns, 0);
}

}  // namespace
}  // namespace rp
