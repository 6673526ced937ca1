#include "coordinator/rounds/completions.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/common/expect_refusal.h"
#include "tests/worker/worker_harness.h"

namespace rp::test {
namespace {

struct Calls {
  int hangs = 0;
  int waits = 0;
};

TEST(Completions, ComeByWorkerAndWithoutASleepWhereTheyAreThere) {
  const std::unique_ptr<Store> store = two_layer_store({});
  Completions completions(*store, {});
  WaitRecord record;
  for (const SlotInEpoch slot : {SlotInEpoch(1), SlotInEpoch(3)})
    ASSERT_TRUE(store->completion_writer(1).try_push({.slot = slot}));
  const auto never = []() -> std::int64_t { throw std::logic_error("it slept"); };
  EXPECT_EQ(completions.wait(1, SlotNumber(1), record, never)->slot, SlotInEpoch(1));
  EXPECT_EQ(completions.wait(1, SlotNumber(3), record, never)->slot, SlotInEpoch(3));
}

TEST(Completions, ThatComeLateAreWaitedForWithWorkInBetween) {
  const std::unique_ptr<Store> store = two_layer_store({});
  Completions completions(*store, {});
  WaitRecord record;
  Calls calls;
  const auto push_at_third = [&] {
    if (++calls.waits == 3) {
      EXPECT_TRUE(store->completion_writer(0).try_push({.slot = SlotInEpoch(4)}));
    }
    return Completions::kShortWait;
  };
  EXPECT_EQ(completions.wait(0, SlotNumber(4), record, push_at_third)->slot, SlotInEpoch(4));
  EXPECT_EQ(calls.waits, 3);
}

TEST(Completions, OfWhichNoneComesWhileNoWorkerComputesEndTheRun) {
  const std::unique_ptr<Store> store = two_layer_store({.wait_timeout_ns = 50 * kNsPerMs});
  Calls calls;
  Completions completions(*store, [&calls] { ++calls.hangs; });
  WaitRecord record;
  SequenceWord& heartbeat = store->worker_words(1).heartbeat;
  const auto beat_for_a_while = [&] {  // the heartbeat of another worker: the run progresses
    if (++calls.waits <= 200) heartbeat.publish_quietly(heartbeat.observe() + 1);
    return Completions::kShortWait;
  };
  expect_error(ExitCode::kHang, {"worker 0 does not complete its task", "is it stopped?"},
               [&] { (void)completions.wait(0, SlotNumber(0), record, beat_for_a_while); });
  EXPECT_GT(calls.waits, 200);
  EXPECT_EQ(calls.hangs, 1);
}

TEST(Completions, AreInterruptedByAnyThread) {
  const std::unique_ptr<Store> store = two_layer_store({});
  Completions completions(*store, {});
  WaitRecord record;
  std::thread other;
  const auto stop_meanwhile = [&] {
    if (!other.joinable()) other = std::thread([&] { completions.interrupt(); });
    return 10 * kNsPerSecond;
  };
  EXPECT_FALSE(completions.wait(0, SlotNumber(0), record, stop_meanwhile).has_value());
  other.join();
}

}  // namespace
}  // namespace rp::test
