#include "train/data/shuffle.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace rp {
namespace {

TEST(Shuffle, IsAPermutationThatDependsOnSeedAndStreamAlone) {
  const auto order = shuffled(1000, 7, 3);
  EXPECT_EQ(order, shuffled(1000, 7, 3));
  EXPECT_NE(order, shuffled(1000, 8, 3));
  EXPECT_NE(order, shuffled(1000, 7, 4));
  auto sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (std::uint64_t i = 0; i < sorted.size(); ++i) ASSERT_EQ(sorted[i], i);
  EXPECT_TRUE(shuffled(0, 7, 3).empty());
  EXPECT_EQ(shuffled(1, 7, 3), std::vector<std::uint64_t>{0});
}

// A change here changes the result of every training run with a given seed.
TEST(Shuffle, GivesTheseNumbersForEver) {
  EXPECT_EQ(shuffled(8, 42, 0), (std::vector<std::uint64_t>{1, 7, 3, 5, 6, 4, 2, 0}));
  EXPECT_EQ(shuffled(8, 42, 1), (std::vector<std::uint64_t>{1, 5, 6, 7, 4, 2, 3, 0}));
}

TEST(Shuffle, EveryPlaceIsAsLikelyAsAnother) {
  constexpr std::uint64_t kCount = 5, kRuns = 20'000;
  std::vector<std::uint64_t> hits(kCount * kCount);
  for (std::uint64_t run = 0; run < kRuns; ++run) {
    const auto order = shuffled(kCount, 1, run);
    for (std::uint64_t i = 0; i < kCount; ++i) ++hits[i * kCount + order[i]];
  }
  // 4000 expected, standard deviation 57.
  for (const std::uint64_t n : hits) EXPECT_NEAR(static_cast<double>(n), 4000, 300);
}

}  // namespace
}  // namespace rp
