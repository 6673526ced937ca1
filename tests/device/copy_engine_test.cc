// Tests the arithmetic of an emulated link. The tests pass the time.
#include "device/copy_engine.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace rp {
namespace {

constexpr int kUrgent = 0, kBulk = 1;

// The link transfers one byte per ns and has no latency. Marks are identified by numbers.
class Link : public testing::Test {
 protected:
  void copy(int stream, std::uint64_t bytes, std::int64_t now, std::size_t place = 0) {
    engine_.enqueue_copy(stream, {.memory = memory_.data() + place, .bytes = bytes}, now);
  }
  void mark(int stream, std::uint64_t number, std::int64_t now) {
    engine_.enqueue_mark({.stream = stream, .value = number}, now);
  }
  // Returns the numbers of the marks that are due by now.
  std::vector<std::uint64_t> due(std::int64_t now) {
    std::vector<std::uint64_t> numbers;
    while (const auto mark = engine_.pop_due(now)) numbers.push_back(mark->value);
    return numbers;
  }
  using Numbers = std::vector<std::uint64_t>;

  std::vector<std::byte> memory_ = std::vector<std::byte>(10'000);
  CopyEngine engine_{1, {0, 0}};
};

TEST_F(Link, TakesTheTimeOfTheBytesFromTheMomentOfEnqueueing) {
  copy(kBulk, 100, 1000);
  mark(kBulk, 1, 1000);
  EXPECT_EQ(engine_.next_due_ns(), 1100);
  EXPECT_EQ(due(1099), Numbers{});
  EXPECT_EQ(due(1100), Numbers{1});
  EXPECT_EQ(engine_.next_due_ns(), INT64_MAX);
}

// The caller looks late, but the second copy still began when the first one ended.
TEST_F(Link, DoesNotAddTheDelaysOfWhoeverLooks) {
  copy(kBulk, 100, 0);
  copy(kBulk, 100, 10);
  mark(kBulk, 1, 20);
  EXPECT_EQ(due(180), Numbers{});
  EXPECT_EQ(engine_.next_due_ns(), 200);
  EXPECT_EQ(due(260), Numbers{1});
  copy(kBulk, 100, 260);  // enqueued after the link became free, so it begins now
  mark(kBulk, 2, 260);
  EXPECT_EQ(engine_.next_due_ns(), 360);
}

TEST_F(Link, GivesTheUrgentStreamTheNextTurnAndFinishesWhatRuns) {
  for (int i = 0; i < 3; ++i) copy(kBulk, 100, 0);
  mark(kBulk, 1, 0);
  EXPECT_EQ(engine_.next_due_ns(), 300);
  copy(kUrgent, 10, 150);
  mark(kUrgent, 2, 150);
  EXPECT_EQ(engine_.next_due_ns(), 210) << "after the bulk piece that runs from 100 to 200";
  EXPECT_EQ(due(210), Numbers{2});
  EXPECT_EQ(due(309), Numbers{});
  EXPECT_EQ(due(310), Numbers{1});
}

TEST(CopyEngine, TakesCopiesInTheirOrderIfNoStreamIsUrgent) {
  CopyEngine engine(1, {0, 0}, false);
  for (int i = 0; i < 3; ++i) engine.enqueue_copy(kBulk, {.memory = nullptr, .bytes = 100}, 0);
  engine.enqueue_copy(kUrgent, {.memory = nullptr, .bytes = 10}, 150);
  engine.enqueue_mark({.stream = kUrgent, .value = 2}, 150);
  EXPECT_FALSE(engine.pop_due(309));
  EXPECT_EQ(engine.pop_due(310)->value, 2U);
}

TEST_F(Link, DoesWhatIsMarkedWithoutCopiesAtOnce) {
  mark(kBulk, 1, 5);
  EXPECT_EQ(due(5), Numbers{1});
}

// A computation may need to know that a copy is in progress and when it will end.
TEST_F(Link, ReportsTheBeginOfACopyIfAsked) {
  copy(kBulk, 100, 0);
  copy(kBulk, 50, 0, 500);
  engine_.enqueue_mark({.stream = kBulk, .value = 1, .is_early = true}, 0);
  mark(kBulk, 2, 0);
  EXPECT_EQ(engine_.next_due_ns(), 100);
  EXPECT_EQ(due(99), Numbers{});
  EXPECT_EQ(due(100), Numbers{1});
  EXPECT_EQ(engine_.last_copy({memory_.data() + 500, 50}, 100).end_ns, 150);
  EXPECT_EQ(due(149), Numbers{});
  EXPECT_EQ(due(150), Numbers{2});
}

TEST_F(Link, KeepsTheOrderOfAStream) {
  mark(kUrgent, 1, 0);
  copy(kUrgent, 50, 0);
  mark(kUrgent, 2, 0);
  mark(kUrgent, 3, 60);
  EXPECT_EQ(due(100), (Numbers{1, 2, 3}));
}

TEST(CopyEngine, AddsALatencyDuringWhichTheLinkIsFree) {
  CopyEngine engine(1, {1000, 0});
  engine.enqueue_copy(kUrgent, {.memory = nullptr, .bytes = 100}, 0);
  engine.enqueue_copy(kUrgent, {.memory = nullptr, .bytes = 100}, 0);
  engine.enqueue_mark({.stream = kUrgent, .value = 1}, 0);
  engine.enqueue_copy(kBulk, {.memory = nullptr, .bytes = 100}, 0);
  engine.enqueue_mark({.stream = kBulk, .value = 2}, 0);
  EXPECT_FALSE(engine.pop_due(299));
  EXPECT_EQ(engine.pop_due(300)->value, 2U);
  EXPECT_FALSE(engine.pop_due(1199));
  EXPECT_EQ(engine.pop_due(1200)->value, 1U);
}

TEST(CopyEngine, IsInfinitelyFastWithoutARate) {
  CopyEngine engine(0, {0});
  engine.enqueue_copy(0, {.memory = nullptr, .bytes = std::uint64_t{1} << 50}, 7);
  engine.enqueue_mark({.value = 1}, 7);
  EXPECT_EQ(engine.pop_due(7)->value, 1U);
}

TEST_F(Link, KnowsWhenMemoryWasCopiedLast) {
  copy(kBulk, 100, 0, 1000);
  copy(kBulk, 100, 0, 1100);
  EXPECT_EQ(engine_.last_copy({memory_.data(), 1000}, 500).end_ns, 0);
  EXPECT_EQ(engine_.last_copy({memory_.data() + 1050, 10}, 500).end_ns, 100);
  EXPECT_EQ(engine_.last_copy({memory_.data() + 1000, 200}, 500).end_ns, 200);
  EXPECT_EQ(engine_.last_copy({memory_.data() + 1199, 500}, 500).end_ns, 200);
  EXPECT_EQ(engine_.last_copy({memory_.data() + 1200, 500}, 500).end_ns, 0);
  copy(kBulk, 150, 600, 950);  // overlaps the first piece
  EXPECT_EQ(engine_.last_copy({memory_.data() + 950, 60}, 900).end_ns, 750);
  EXPECT_EQ(engine_.last_copy({memory_.data() + 950, 60}, 900).enqueued_ns, 600);
}

// A timer sleeps until next_due_ns(), so this may be early but never late. It must not be so early
// that the timer makes no progress.
TEST(CopyEngine, NamesNoTimeThatIsLaterThanTheNextMark) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    CopyEngine engine(1, {static_cast<std::int64_t>(random() % 20), 0});
    std::int64_t now = 0;
    int num_marks = 0, num_due = 0;
    for (int i = 0; i < 200 || num_due < num_marks; ++i) {
      if (i < 200 && random() % 2 == 0) {
        const int stream = static_cast<int>(random() % 2);
        engine.enqueue_copy(stream, {.memory = nullptr, .bytes = random() % 50}, now);
        if (random() % 3 == 0) {
          engine.enqueue_mark({.stream = stream, .is_early = random() % 2 == 0}, now);
          ++num_marks;
        }
      }
      while (engine.pop_due(now)) ++num_due;
      const std::int64_t next = engine.next_due_ns();
      ASSERT_GT(next, now) << "seed " << seed;
      if (next == INT64_MAX) {
        now += 10;
        continue;
      }
      if (next > now + 1) {
        EXPECT_FALSE(engine.pop_due(next - 1)) << "seed " << seed;
      }
      now = i < 200 ? std::max(next - 1, now) + static_cast<std::int64_t>(random() % 30) : next;
      ASSERT_LT(i, 10'000) << "seed " << seed;
    }
    EXPECT_EQ(num_due, num_marks);
  }
}

}  // namespace
}  // namespace rp
