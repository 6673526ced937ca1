#include "worker/copies/bulk_copies.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <vector>

#include "tests/worker/worker_harness.h"

namespace rp {
namespace {

constexpr std::uint64_t kPiece = kMinBulkPieceBytes;
constexpr std::uint64_t kUnderWay = 2;  // pieces of long copies

// A stream that executes copies when the test calls do_one().
class HeldStream : public Stream {
 public:
  struct Operation {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    std::uint64_t bytes = 0;  // 0 for a signal
    SequenceWord* word = nullptr;
    std::uint64_t value = 0;
  };
  std::deque<Operation> operations;

  void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) override {
    operations.push_back({.to = to, .from = from, .bytes = bytes});
  }
  void signal(SequenceWord& word, std::uint64_t value) override {
    operations.push_back({.word = &word, .value = value});
  }
  void call(void (*)(void*), void*) override {}
  void drain() override {}

  void do_one() {
    const Operation operation = operations.front();
    operations.pop_front();
    if (operation.word != nullptr) operation.word->publish(operation.value);
    else std::memcpy(operation.to, operation.from, operation.bytes);
  }
  [[nodiscard]] std::uint64_t pieces_under_way() const {
    std::uint64_t count = 0;
    for (const Operation& operation : operations) count += operation.bytes > 0;
    return count;
  }
};

class BulkCopiesTest : public testing::Test {
 protected:
  BulkCopiesTest() : from(5 * kPiece / 2 + 77, std::byte{3}), to(from.size()) {}
  HeldStream stream;
  std::vector<std::byte> from, to;
};

TEST_F(BulkCopiesTest, LetAnOutputPassAfterTwoPieces) {
  BulkCopies copies(stream, true);
  int waits = 0;
  const auto wait = [&](const auto& has_room) {
    EXPECT_EQ(has_room({&kNeverStop, 0}), WaitResult::kTimedOut) << "it waits without need";
    EXPECT_EQ(stream.pieces_under_way(), kUnderWay);
    if (waits++ == 0) stream.copy(nullptr, nullptr, 1);  // an urgent copy, behind two pieces
    for (int i = 0; i < 2; ++i) stream.do_one();         // one piece and its signal
    if (waits == 1) {
      EXPECT_EQ(stream.operations[2].bytes, 1U) << "one piece before it";
      stream.operations.erase(stream.operations.begin() + 2);
    }
    return has_room(kLong) == WaitResult::kReached;
  };
  EXPECT_TRUE(copies.copy(to.data(), from.data(), from.size(), wait));
  EXPECT_EQ(waits, 1);
  while (!stream.operations.empty()) stream.do_one();
  EXPECT_EQ(to, from);
}

TEST_F(BulkCopiesTest, GoOnWhereTheLastCopyEnded) {
  BulkCopies copies(stream, true);
  const auto wait = [&](const auto& has_room) {
    while (has_room({&kNeverStop, 0}) != WaitResult::kReached) stream.do_one();
    return true;
  };
  for (int i = 0; i < 5; ++i) {
    std::fill(to.begin(), to.end(), std::byte{0});
    EXPECT_TRUE(copies.copy(to.data(), from.data(), from.size(), wait));
    EXPECT_LE(stream.pieces_under_way(), kUnderWay);
    while (!stream.operations.empty()) stream.do_one();
    EXPECT_EQ(to, from);
  }
}

TEST_F(BulkCopiesTest, StopInTheMiddle) {
  BulkCopies copies(stream, true);
  EXPECT_FALSE(copies.copy(to.data(), from.data(), from.size(), [](const auto&) { return false; }));
  EXPECT_EQ(stream.pieces_under_way(), kUnderWay);
}

TEST_F(BulkCopiesTest, ThatDoNotGiveWayGoAsAWhole) {
  BulkCopies copies(stream, false);
  EXPECT_TRUE(copies.copy(to.data(), from.data(), from.size(), [](const auto&) { return false; }));
  EXPECT_EQ(stream.operations.size(), 1U);
  while (!stream.operations.empty()) stream.do_one();
  EXPECT_EQ(to, from);
}

}  // namespace
}  // namespace rp
