#include "common/indexed.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace rp {
namespace {

using Apple = StrongNumber<struct AppleTag, std::uint32_t>;
enum class Color { kRed, kGreen };

template <typename Container, typename Index>
concept IndexedBy = requires(const Container& container, Index index) { container[index]; };
static_assert(IndexedBy<IndexedVector<Apple, int>, Apple> && !IndexedBy<IndexedVector<Apple, int>, int>);
static_assert(IndexedBy<IndexedArray<Color, int, 2>, Color> && !IndexedBy<IndexedArray<Color, int, 2>, int>);

TEST(IndexedVector, HoldsOneItemForEachIndex) {
  IndexedVector<Apple, std::string> names(2, "?");
  names[Apple(1)] = "b";
  names.push_back("c");
  EXPECT_EQ(names, (IndexedVector<Apple, std::string>{"?", "b", "c"}));
  EXPECT_EQ(names.back(), "c");
  EXPECT_THROW((void)names.at(Apple(3)), std::out_of_range);
  std::string all;
  for (const Apple apple : names.indices()) all += names[apple];
  EXPECT_EQ(all, "?bc");
}

TEST(IndexedArray, HoldsOneItemForEachIndex) {
  IndexedArray<Color, int, 2> counts{};
  for (const Color color : counts.indices()) counts[color] = 5 + static_cast<int>(color);
  EXPECT_EQ(counts, (IndexedArray<Color, int, 2>{5, 6}));
  EXPECT_EQ(counts[Color::kGreen], 6);
}

}  // namespace
}  // namespace rp
