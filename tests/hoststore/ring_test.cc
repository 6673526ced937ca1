#include "hoststore/ring.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "hoststore/memory/segment.h"
#include "tests/common/wait_limits.h"
#include "tests/hoststore/processes.h"

namespace rp {
namespace {

struct Item {
  using ShmFormat = void;
  std::uint64_t number = 0;
  std::uint64_t square = 0;
};

constexpr std::uint32_t kCapacity = 4;

class Ring : public testing::Test {
 protected:
  Ring() : segment_(Segment::create(Backing::kMemfd, "a ring")) {
    segment_.reserve(4096);
    mapping_ = Mapping(segment_, Access::kReadWrite, 0, 4096);
    writer_ = RingWriter<Item>(mapping_.data(), kCapacity);
    reader_ = RingReader<Item>(mapping_.data(), kCapacity);
  }

  Segment segment_;
  Mapping mapping_;
  RingWriter<Item> writer_;
  RingReader<Item> reader_;
};

// Reads items 0 to num - 1. Returns false if one is wrong or does not arrive.
bool reads_all(RingReader<Item> reader, std::uint64_t num) {
  for (std::uint64_t i = 0; i < num; ++i) {
    if (reader.wait(kLong) != WaitResult::kReached) return false;
    Item item;
    if (!reader.try_pop(item) || item.number != i || item.square != i * i) return false;
  }
  return true;
}

void write_all(RingWriter<Item> writer, std::uint64_t num) {
  for (std::uint64_t i = 0; i < num; ++i) {
    while (!writer.try_push({i, i * i})) std::this_thread::yield();
  }
}

TEST_F(Ring, IsEmptyAtFirst) {
  Item item{1, 2};
  EXPECT_FALSE(reader_.try_pop(item));
  EXPECT_EQ(item.number, 1U);
  EXPECT_EQ(reader_.wait({&kNeverStop, kNsPerMs}), WaitResult::kTimedOut);
}

TEST_F(Ring, RefusesWhatItHasNoRoomForAndStaysAsItWas) {
  for (std::uint64_t i = 0; i < kCapacity; ++i) EXPECT_TRUE(writer_.try_push({i, i * i}));
  EXPECT_FALSE(writer_.try_push({99, 99}));
  Item item;
  for (std::uint64_t i = 0; i < kCapacity; ++i) {
    ASSERT_TRUE(reader_.try_pop(item));
    EXPECT_EQ(item.number, i);
  }
  EXPECT_FALSE(reader_.try_pop(item));
}

TEST_F(Ring, WrapsAroundAtAnyFillLevel) {
  std::uint64_t pushed = 0, popped = 0;
  Item item;
  for (std::uint64_t fill = 1; fill <= kCapacity; ++fill) {
    for (int turn = 0; turn < 11; ++turn) {
      while (pushed - popped < fill) {
        ASSERT_TRUE(writer_.try_push({pushed, 0}));
        ++pushed;
      }
      ASSERT_TRUE(reader_.try_pop(item));
      EXPECT_EQ(item.number, popped++);
    }
  }
}

TEST_F(Ring, GoesOnWhereItWasForAViewThatIsMadeLater) {
  ASSERT_TRUE(writer_.try_push({1, 1}));
  ASSERT_TRUE(writer_.try_push({2, 4}));
  Item item;
  ASSERT_TRUE(reader_.try_pop(item));
  RingReader<Item> second(mapping_.data(), kCapacity);
  ASSERT_TRUE(second.try_pop(item));
  EXPECT_EQ(item.number, 2U);
  EXPECT_FALSE(second.try_pop(item));
}

TEST_F(Ring, CarriesItemsWholeBetweenThreads) {
  bool good = false;
  std::thread reader([&] { good = reads_all(reader_, 5000); });
  write_all(writer_, 5000);
  reader.join();
  EXPECT_TRUE(good);
}

TEST_F(Ring, CarriesItemsWholeBetweenTwoMappings) {
  const Mapping there(segment_, Access::kReadWrite, 0, 4096);
  bool good = false;
  std::thread reader([&] { good = reads_all(RingReader<Item>(there.data(), kCapacity), 5000); });
  write_all(writer_, 5000);
  reader.join();
  EXPECT_TRUE(good);
}

TEST_F(Ring, CarriesItemsWholeBetweenProcesses) {
  const pid_t child = test::start_process([this] {
    const Mapping there(segment_, Access::kReadWrite, 0, 4096);
    return reads_all(RingReader<Item>(there.data(), kCapacity), 2000);
  });
  write_all(writer_, 2000);
  EXPECT_EQ(test::wait_for_process(child), 0);
}

TEST_F(Ring, LetsASleepingReaderGoWhenItStops) {
  std::atomic<bool> stop{false};
  std::thread reader([&] { EXPECT_EQ(reader_.wait({&stop, 60 * kNsPerSecond}), WaitResult::kStopped); });
  stop.store(true, std::memory_order_release);
  reader_.wake();
  reader.join();
}

TEST(RingDiscard, DropsWhatWasNotRead) {
  alignas(64) std::byte memory[ring_bytes<std::uint64_t>(4)] = {};
  RingWriter<std::uint64_t> writer(memory, 4);
  RingReader<std::uint64_t> reader(memory, 4);
  for (const std::uint64_t item : {1, 2, 3}) ASSERT_TRUE(writer.try_push(item));
  std::uint64_t item = 0;
  ASSERT_TRUE(reader.try_pop(item));
  writer.discard();
  EXPECT_FALSE(reader.try_pop(item));
  for (const std::uint64_t next : {4, 5, 6, 7}) ASSERT_TRUE(writer.try_push(next));
  ASSERT_TRUE(reader.try_pop(item));
  EXPECT_EQ(item, 4U);
  reader.discard();
  EXPECT_FALSE(reader.try_pop(item));
}

}  // namespace
}  // namespace rp
