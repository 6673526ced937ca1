#include "hoststore/sequence_word.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "hoststore/memory/segment.h"
#include "tests/common/wait_limits.h"
#include "tests/hoststore/processes.h"

namespace rp {
namespace {

SequenceWord& word_in(const Mapping& mapping, std::size_t index) {
  return reinterpret_cast<SequenceWord*>(mapping.data())[index];
}

TEST(SequenceWord, IsReachedAtOnceByWhatIsThereAlready) {
  SequenceWord word{};
  word.publish(5);
  EXPECT_EQ(word.observe(), 5U);
  EXPECT_EQ(word.wait_at_least(5, {&kNeverStop, 0}), WaitResult::kReached);
  EXPECT_EQ(word.wait_at_least(3, {&kNeverStop, 0}), WaitResult::kReached);
}

TEST(SequenceWord, CarriesWhatWasWrittenBeforeItToAnotherThread) {
  SequenceWord to{}, back{};
  std::uint64_t message = 0;  // guarded by the words only; ThreadSanitizer reports it if they do not order enough
  constexpr std::uint64_t kTurns = 2000;
  std::thread other([&] {
    for (std::uint64_t i = 1; i <= kTurns; ++i) {
      ASSERT_EQ(to.wait_at_least(i, kLong), WaitResult::kReached);
      ASSERT_EQ(message, 2 * i);
      message = 2 * i + 1;
      back.publish(i);
    }
  });
  for (std::uint64_t i = 1; i <= kTurns; ++i) {
    message = 2 * i;
    to.publish(i);
    EXPECT_EQ(back.wait_at_least(i, kLong), WaitResult::kReached);
    EXPECT_EQ(message, 2 * i + 1);
  }
  other.join();
}

TEST(SequenceWord, WakesAllWhoWaitInWhateverMapping) {
  Segment segment = Segment::create(Backing::kMemfd, "words");
  segment.reserve(4096);
  const Mapping here(segment, Access::kReadWrite, 0, 4096);
  const Mapping there(segment, Access::kReadOnly, 0, 4096);
  std::vector<std::thread> waiters;
  for (int i = 0; i < 4; ++i) {
    const Mapping& mapping = i % 2 == 0 ? here : there;
    waiters.emplace_back([&mapping] { EXPECT_EQ(word_in(mapping, 0).wait_at_least(7, kLong), WaitResult::kReached); });
  }
  for (std::uint64_t value = 1; value <= 7; ++value) word_in(here, 0).publish(value);
  for (std::thread& waiter : waiters) waiter.join();
}

TEST(SequenceWord, WakesAnotherProcess) {
  Segment segment = Segment::create(Backing::kShm, "words");
  segment.reserve(4096);
  const pid_t child = test::start_process([&segment] {
    const Mapping mapping(segment, Access::kReadWrite, 0, 4096);
    for (std::uint64_t i = 1; i <= 500; ++i) {
      if (word_in(mapping, 0).wait_at_least(i, kLong) != WaitResult::kReached) return false;
      word_in(mapping, 8).publish(i);
    }
    return true;
  });
  const Mapping mapping(segment, Access::kReadWrite, 0, 4096);
  for (std::uint64_t i = 1; i <= 500; ++i) {
    word_in(mapping, 0).publish(i);
    ASSERT_EQ(word_in(mapping, 8).wait_at_least(i, kLong), WaitResult::kReached);
  }
  EXPECT_EQ(test::wait_for_process(child), 0);
}

TEST(SequenceWord, GivesUpAtTheDeadline) {
  SequenceWord word{};
  const std::int64_t start = now_ns();
  EXPECT_EQ(word.wait_at_least(1, {&kNeverStop, 30 * kNsPerMs}), WaitResult::kTimedOut);
  EXPECT_GE(now_ns() - start, 30 * kNsPerMs);
  EXPECT_EQ(word.wait_at_least(1, {&kNeverStop, 0}), WaitResult::kTimedOut);
}

TEST(SequenceWord, GivesUpWhenItsProcessStopsEvenIfTheWakeIsMissed) {
  for (const bool wakes : {true, false}) {
    SequenceWord word{};
    std::atomic<bool> stop{false};
    std::thread waiter([&] { EXPECT_EQ(word.wait_at_least(1, {&stop, 60 * kNsPerSecond}), WaitResult::kStopped); });
    const std::int64_t start = now_ns();
    stop.store(true, std::memory_order_release);
    if (wakes) word.wake();
    waiter.join();
    EXPECT_LT(now_ns() - start, 5 * kNsPerSecond);
  }
}

TEST(SequenceWord, PrefersItsFactToItsStopSoThatWhatIsThereIsNotLost) {
  SequenceWord word{};
  const std::atomic<bool> stop{true};
  word.publish(1);
  EXPECT_EQ(word.wait_at_least(1, {&stop, kNsPerSecond}), WaitResult::kReached);
  EXPECT_EQ(word.wait_at_least(2, {&stop, kNsPerSecond}), WaitResult::kStopped);
}

TEST(NumberWord, IsASequenceWordThatCountsInATypeOfNumber) {
  NumberWord<Version> word{};
  EXPECT_EQ(word.observe(), Version(0));
  std::thread waiter([&] { EXPECT_EQ(word.wait_at_least(Version(2), kLong), WaitResult::kReached); });
  word.publish(Version(2));
  waiter.join();
  EXPECT_EQ(word.observe(), Version(2));
  EXPECT_EQ(word.wait_at_least(Version(3), {&kNeverStop, 0}), WaitResult::kTimedOut);
}

TEST(SequenceWord, WakesAWaiterAcrossEpochsWhoseLowHalvesAreEqual) {
  NumberWord<EventInEpoch> word{};
  word.publish(EventInEpoch(Epoch(1), EventNumber(5)));
  std::thread waiter(
      [&] { EXPECT_EQ(word.wait_at_least(EventInEpoch(Epoch(2), EventNumber(5)), kLong), WaitResult::kReached); });
  word.publish(EventInEpoch(Epoch(2), EventNumber(5)));  // the half that the futex compares does not change
  waiter.join();
}

}  // namespace
}  // namespace rp
