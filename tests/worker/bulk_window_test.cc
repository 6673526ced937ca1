#include "worker/copies/bulk_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace rp {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 40;

// The refill takes 3000 ns, the link 10 ns for each KiB.
constexpr std::int64_t ns_on_the_line(std::uint64_t bytes) {
  return 3000 + static_cast<std::int64_t>(bytes / 1024 * 10);
}

RefillEstimate estimate_of(const std::vector<std::int64_t>& excess_ns) {
  RefillEstimate estimate;
  for (std::size_t i = 0; i < excess_ns.size(); ++i) {
    const std::uint64_t bytes = i % 2 == 0 ? 100 * 1024 : 400 * 1024;
    estimate.add(bytes, ns_on_the_line(bytes) + excess_ns[i]);
  }
  return estimate;
}

TEST(RefillEstimate, SaysNothingBeforeItHasEnoughSamplesOfDifferentLengths) {
  EXPECT_FALSE(estimate_of({0, 0, 0}).refill_bytes(kNoLimit));
  EXPECT_TRUE(estimate_of({0, 0, 0, 0}).refill_bytes(kNoLimit));
  RefillEstimate alike;
  for (int i = 0; i < 20; ++i) alike.add(100 * 1024 + static_cast<std::uint64_t>(i), ns_on_the_line(100 * 1024));
  EXPECT_FALSE(alike.refill_bytes(kNoLimit));
}

TEST(RefillEstimate, IsTheLineOfThoseCopiesThatNothingHeldUp) {
  constexpr std::uint64_t kRefill = 3000 / 10 * 1024;  // at 10 ns for each KiB
  EXPECT_EQ(estimate_of({0, 0, 0, 0, 0, 0, 0, 0}).refill_bytes(kNoLimit), kRefill);
  EXPECT_EQ(estimate_of({9000, 0, 0, 0, 0, 7000, 0, 0, 0, 0, 8000, 0}).refill_bytes(kNoLimit), kRefill);
  EXPECT_EQ(estimate_of({0, 1 << 20, 0, 0, 0, 1 << 21, 0, 0, 0, 0, 0, 0}).refill_bytes(kNoLimit), kRefill);
}

TEST(RefillEstimate, ForgetsOldSamples) {
  RefillEstimate estimate = estimate_of(std::vector<std::int64_t>(20, 50'000));
  EXPECT_EQ(estimate.refill_bytes(kNoLimit), 53'000U / 10 * 1024);
  for (std::size_t i = 0; i < RefillEstimate::kNumSamples; ++i) {
    const std::uint64_t bytes = i % 2 == 0 ? 100 * 1024 : 400 * 1024;
    estimate.add(bytes, ns_on_the_line(bytes));
  }
  EXPECT_EQ(estimate.refill_bytes(kNoLimit), 3000U / 10 * 1024);
}

TEST(RefillEstimate, StaysWithinItsLimitWhateverItIsGiven) {
  EXPECT_EQ(estimate_of({0, 0, 0, 0}).refill_bytes(1024), 1024U);
  EXPECT_EQ(estimate_of({9000, 0, 9000, 0}).refill_bytes(kNoLimit), kNoLimit)
      << "a long one took no longer than a short one";
  EXPECT_EQ(estimate_of({0, 9000, 0, 9000}).refill_bytes(kNoLimit), 0U) << "the whole time is the link's";
}

// Copies whose pieces are done as soon as the window allows.
class Copies {
 public:
  // Returns the lengths of the pieces of one copy.
  std::vector<std::uint64_t> copy(std::uint64_t bytes) {
    std::vector<std::uint64_t> pieces;
    window.begin_copy(bytes);
    while (window.next_piece() > 0) {
      const std::uint64_t needed = window.done_before_next();
      if (needed > window.num_done()) see_done(needed);
      pieces.push_back(window.next_piece());
      all.push_back(pieces.back());
      window.enqueue_next(now_ns);
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(window.num_done());
      peak_in_flight = std::max(peak_in_flight, std::accumulate(first, all.end(), std::uint64_t{0}));
      peak_pieces = std::max(peak_pieces, all.size() - window.num_done());
    }
    return pieces;
  }
  // A piece is seen done after a refill and its time on the link. This is measured if the piece had
  // the link to itself.
  void see_done(std::uint64_t number) {
    now_ns += refill_ns + static_cast<std::int64_t>(static_cast<double>(all[number - 1]) / bytes_per_ns);
    window.see_done(number, was_awaited, now_ns);
  }

  BulkWindow window;
  std::int64_t refill_ns = 200'000;
  double bytes_per_ns = 50;
  bool was_awaited = true;
  std::int64_t now_ns = 0;
  std::vector<std::uint64_t> all;
  std::uint64_t peak_in_flight = 0;  // bytes
  std::size_t peak_pieces = 0;
};

TEST(BulkWindow, CutsACopyIntoEqualPieces) {
  Copies copies;
  copies.was_awaited = false;
  const std::vector<std::uint64_t> pieces = copies.copy(10 * kMiB + 333);
  ASSERT_EQ(pieces.size(), 3U);
  EXPECT_EQ(pieces[0] + pieces[1] + pieces[2], 10 * kMiB + 333);
  for (const std::uint64_t piece : pieces) EXPECT_NEAR(static_cast<double>(piece), 10.0 / 3 * kMiB, 8192);
  EXPECT_EQ(copies.copy(1), std::vector<std::uint64_t>{1});
  EXPECT_EQ(copies.copy(0), std::vector<std::uint64_t>{});
}

TEST(BulkWindow, HasTwoPiecesBytesUnderWayAndMorePiecesWhereCopiesAreShort) {
  Copies copies;
  copies.was_awaited = false;
  copies.copy(100 * kMiB);
  EXPECT_EQ(copies.peak_pieces, 2U);
  EXPECT_EQ(copies.peak_in_flight, 2 * kMinBulkPieceBytes);
  for (int i = 0; i < 100; ++i) copies.copy(kMiB + 5);
  EXPECT_EQ(copies.peak_pieces, 7U);
  EXPECT_LE(copies.peak_in_flight, 2 * kMinBulkPieceBytes);
  for (int i = 0; i < 100; ++i) copies.copy(100);
  EXPECT_EQ(copies.peak_pieces, BulkWindow::kMaxPieces);
}

TEST(BulkWindow, FindsPiecesOfOneAndAHalfRefills) {
  Copies copies;
  for (int i = 0; i < 20; ++i) copies.copy(200 * kMiB);
  const double needed = 1.5 * copies.bytes_per_ns * static_cast<double>(copies.refill_ns);
  EXPECT_NEAR(static_cast<double>(copies.window.piece_bytes()), needed, kMiB / 2.0);
  EXPECT_LE(copies.peak_in_flight, 2 * copies.window.piece_bytes());
  copies.refill_ns = 120'000;  // from now on
  for (int i = 0; i < 400; ++i) copies.copy(200 * kMiB);
  EXPECT_NEAR(static_cast<double>(copies.window.piece_bytes()), 0.6 * needed, kMiB / 2.0);
}

TEST(BulkWindow, StaysWithinItsBounds) {
  Copies slow_host;
  slow_host.refill_ns = 5'000'000;
  for (int i = 0; i < 20; ++i) slow_host.copy(200 * kMiB);
  EXPECT_EQ(slow_host.window.piece_bytes(), kMaxBulkPieceBytes);
  Copies slow_link;
  slow_link.bytes_per_ns = 5;
  for (int i = 0; i < 20; ++i) slow_link.copy(200 * kMiB);
  EXPECT_EQ(slow_link.window.piece_bytes(), kMinBulkPieceBytes);
}

// This is the case on the processor, where the thread that enqueues a copy executes it.
TEST(BulkWindow, LearnsNothingFromCopiesThatNoTaskWaitedFor) {
  Copies copies;
  copies.was_awaited = false;
  for (int i = 0; i < 100; ++i) copies.copy(200 * kMiB);
  EXPECT_EQ(copies.window.piece_bytes(), kMinBulkPieceBytes);
}

// The first piece of a copy may wait for what was enqueued before it on the same stream.
TEST(BulkWindow, NeverMeasuresTheFirstPieceOfACopy) {
  Copies copies;
  for (int i = 0; i < 100; ++i) copies.copy(4 * kMiB);
  EXPECT_EQ(copies.window.piece_bytes(), kMinBulkPieceBytes);
}

}  // namespace
}  // namespace rp
