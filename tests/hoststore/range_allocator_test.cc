#include "hoststore/range_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

namespace rp {
namespace {

constexpr std::uint64_t kPage = 4096;

// Allocates like RangeAllocator, but with a list of pages: takes the smallest hole that is long
// enough, and the first of equal ones.
class NaiveAllocator {
 public:
  void extend(std::uint64_t pages) { used_.resize(used_.size() + pages, false); }
  std::optional<std::uint64_t> allocate(std::uint64_t pages) {
    std::optional<std::size_t> best;
    std::size_t best_length = SIZE_MAX;
    for (std::size_t at = 0; at < used_.size();) {
      const std::size_t length = hole_at(at);
      if (length >= pages && length < best_length) {
        best = at;
        best_length = length;
      }
      at += length == 0 ? 1 : length;
    }
    if (!best) return std::nullopt;
    std::fill_n(used_.begin() + static_cast<std::ptrdiff_t>(*best), pages, true);
    return *best;
  }
  void free(std::uint64_t page, std::uint64_t pages) {
    std::fill_n(used_.begin() + static_cast<std::ptrdiff_t>(page), pages, false);
  }
  [[nodiscard]] std::uint64_t used() const {
    return static_cast<std::uint64_t>(std::count(used_.begin(), used_.end(), true));
  }

 private:
  [[nodiscard]] std::size_t hole_at(std::size_t at) const {
    std::size_t end = at;
    while (end < used_.size() && !used_[end]) ++end;
    return end - at;
  }
  std::vector<bool> used_;
};

TEST(RangeAllocator, TakesOverWhatAnEarlierOwnerAllocated) {
  RangeAllocator allocator;
  allocator.extend(0);
  allocator.extend(8 * kPage);
  allocator.allocate_at(2 * kPage, 100);
  allocator.allocate_at(6 * kPage, 2 * kPage);
  allocator.allocate_at(0, kPage);
  EXPECT_EQ(allocator.used_bytes(), 4 * kPage);
  EXPECT_EQ(allocator.allocate(3 * kPage), 3 * kPage);
  EXPECT_EQ(allocator.allocate(kPage), kPage);
  EXPECT_EQ(allocator.allocate(kPage), std::nullopt);
  allocator.free(2 * kPage);
  EXPECT_EQ(allocator.allocate(1), 2 * kPage);
}

TEST(RangeAllocator, HasNothingAtFirstAndSaysWhatIsMissing) {
  RangeAllocator allocator;
  EXPECT_EQ(allocator.allocate(1), std::nullopt);
  EXPECT_EQ(allocator.missing(1), kPage);
  EXPECT_EQ(allocator.missing(kPage + 1), 2 * kPage);
  allocator.extend(3 * kPage);
  EXPECT_EQ(allocator.allocate(0), 0U);  // an allocation of no bytes has a place of its own, too
  EXPECT_EQ(allocator.allocate(kPage), kPage);
  EXPECT_EQ(allocator.used_bytes(), 2 * kPage);
}

TEST(RangeAllocator, NeedsLessOfTheArenaWhereItsEndIsFree) {
  RangeAllocator allocator;
  allocator.extend(4 * kPage);
  (void)allocator.allocate(kPage);
  EXPECT_EQ(allocator.missing(5 * kPage), 2 * kPage);
  allocator.extend(2 * kPage);
  EXPECT_EQ(allocator.allocate(5 * kPage), kPage);
  EXPECT_EQ(allocator.missing(kPage), kPage);
}

TEST(RangeAllocator, MergesWithBothNeighbours) {
  RangeAllocator allocator;
  allocator.extend(3 * kPage);
  for (const std::uint64_t page : {0U, 1U, 2U}) EXPECT_EQ(allocator.allocate(1), page * kPage);
  allocator.free(0);
  allocator.free(2 * kPage);
  EXPECT_EQ(allocator.allocate(2 * kPage), std::nullopt);
  allocator.free(kPage);
  EXPECT_EQ(allocator.allocate(3 * kPage), 0U);
}

TEST(RangeAllocator, KeepsWhatStaysApartFromWhatComesAndGoes) {
  using Fit = RangeAllocator::Fit;
  RangeAllocator allocator;
  allocator.extend(10 * kPage);
  EXPECT_EQ(allocator.allocate(kPage, Fit::kFirst), 0U);
  EXPECT_EQ(allocator.allocate(2 * kPage, Fit::kBestEnd), 8 * kPage);
  EXPECT_EQ(allocator.allocate(kPage, Fit::kBestEnd), 7 * kPage);
  allocator.free(8 * kPage);
  EXPECT_EQ(allocator.largest_free(), 6 * kPage);
  // The hole of two pages would fit better.
  EXPECT_EQ(allocator.allocate(kPage, Fit::kFirst), kPage);
  EXPECT_EQ(allocator.allocate(kPage, Fit::kBestEnd), 9 * kPage);
  EXPECT_EQ(allocator.allocate(kPage), 8 * kPage);
  EXPECT_EQ(allocator.largest_free(), 5 * kPage);
  EXPECT_EQ(allocator.bytes_at(8 * kPage), kPage);
  allocator.free(0);
  EXPECT_EQ(allocator.allocate(2 * kPage, Fit::kFirst), 2 * kPage) << "the first hole is too short";
}

TEST(RangeAllocator, DoesWhatANaiveModelDoesOverRandomHistories) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    RangeAllocator allocator;
    NaiveAllocator model;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> allocations;  // page, pages
    std::uint64_t total = 0;
    for (int turn = 0; turn < 400; ++turn) {
      if (allocations.empty() || random() % 5 < 3) {
        const std::uint64_t bytes = random() % (6 * kPage) + 1;
        const std::uint64_t pages = (bytes + kPage - 1) / kPage;
        auto place = allocator.allocate(bytes);
        auto expected = model.allocate(pages);
        EXPECT_EQ(allocator.missing(bytes) == 0 || place.has_value(),
                  allocator.missing(bytes) == 0 || expected.has_value());
        if (!place) {
          EXPECT_FALSE(expected.has_value());
          const std::uint64_t missing = allocator.missing(bytes);
          allocator.extend(missing);
          model.extend(missing / kPage);
          total += missing;
          place = allocator.allocate(bytes);
          expected = model.allocate(pages);
        }
        ASSERT_TRUE(place.has_value() && expected.has_value());
        ASSERT_EQ(*place, *expected * kPage);
        allocations.emplace_back(*expected, pages);
      } else {
        const std::size_t index = random() % allocations.size();
        allocator.free(allocations[index].first * kPage);
        model.free(allocations[index].first, allocations[index].second);
        allocations.erase(allocations.begin() + static_cast<std::ptrdiff_t>(index));
      }
      ASSERT_EQ(allocator.used_bytes(), model.used() * kPage);
      ASSERT_EQ(allocator.total_bytes(), total);
    }
    for (const auto& [page, pages] : allocations) allocator.free(page * kPage);
    EXPECT_EQ(allocator.used_bytes(), 0U);
    EXPECT_EQ(allocator.allocate(total), 0U) << "all is one free range again";
  }
}

TEST(RangeAllocatorDeathTest, RefusesToFreeWhatIsFree) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  RangeAllocator allocator;
  allocator.extend(kPage);
  const std::uint64_t offset = allocator.allocate(1).value();
  allocator.free(offset);
  EXPECT_DEATH(allocator.free(offset), "range_allocator");
}

}  // namespace
}  // namespace rp
