#include "train/data/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace rp {
namespace {

using Sizes = std::vector<std::uint32_t>;

std::uint32_t draw(std::mt19937& random, std::uint32_t below) { return static_cast<std::uint32_t>(random() % below); }

// Computes first_fit_decreasing() by its definition, in n^2 time.
std::vector<std::vector<std::uint64_t>> by_definition(const Sizes& sizes, std::uint32_t capacity) {
  std::vector<std::uint64_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return sizes[a] > sizes[b]; });
  std::vector<std::vector<std::uint64_t>> packs;
  std::vector<std::uint32_t> room;
  for (const std::uint64_t item : order) {
    std::size_t pack = 0;
    while (pack < packs.size() && room[pack] < sizes[item]) ++pack;
    if (pack == packs.size()) {
      packs.emplace_back();
      room.push_back(capacity);
    }
    packs[pack].push_back(item);
    room[pack] -= sizes[item];
  }
  return packs;
}

std::vector<std::vector<std::uint64_t>> lists_of(const Packs& packs) {
  std::vector<std::vector<std::uint64_t>> lists;
  for (std::uint64_t i = 0; i < packs.size(); ++i) {
    const auto pack = packs.pack(i);
    lists.emplace_back(pack.begin(), pack.end());
  }
  return lists;
}

TEST(PackingTest, TheLargestGoFirstAndEachIntoTheFirstPackWithRoom) {
  const Packs packs = first_fit_decreasing(Sizes{3, 6, 7, 4, 2, 8}, 10);
  EXPECT_EQ(lists_of(packs), (std::vector<std::vector<std::uint64_t>>{{5, 4}, {2, 0}, {1, 3}}));
}

TEST(PackingTest, NothingMakesNoPacks) { EXPECT_EQ(first_fit_decreasing({}, 10).size(), 0U); }

TEST(PackingTest, GivesWhatTheDefinitionGives) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const std::uint32_t capacity = 1 + draw(random, 40);
    Sizes sizes(1 + draw(random, 60));
    for (std::uint32_t& size : sizes) size = 1 + draw(random, capacity);
    EXPECT_EQ(lists_of(first_fit_decreasing(sizes, capacity)), by_definition(sizes, capacity)) << "round " << round;
  }
}

TEST(PackingTest, TheNumberOfPacksDoesNotDependOnTheOrder) {
  std::mt19937 random(8);
  Sizes sizes(500);
  for (std::uint32_t& size : sizes) size = 1 + draw(random, 100);
  const std::uint64_t num_packs = first_fit_decreasing(sizes, 100).size();
  for (int round = 0; round < 10; ++round) {
    std::shuffle(sizes.begin(), sizes.end(), random);
    EXPECT_EQ(first_fit_decreasing(sizes, 100).size(), num_packs);
  }
}

}  // namespace
}  // namespace rp
