#include "common/strong_number.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <type_traits>
#include <vector>

#include "common/shm_safe.h"
#include "common/text.h"

namespace rp {
namespace {

using Apple = StrongNumber<struct AppleTag, std::uint32_t>;
using Pear = StrongNumber<struct PearTag, std::uint32_t>;

static_assert(!std::is_convertible_v<std::uint32_t, Apple> && !std::is_convertible_v<Apple, std::uint32_t>);
static_assert(!std::is_constructible_v<Apple, Pear> && !std::is_convertible_v<Apple, Pear>);
static_assert(!std::is_constructible_v<Apple, double>);
static_assert(sizeof(Apple) == sizeof(std::uint32_t) && ShmSafe<Apple> && std::is_trivially_copyable_v<Apple>);

TEST(StrongNumber, CountsComparesAndPrintsLikeItsInteger) {
  Apple apple(6);
  EXPECT_EQ(++apple, Apple(7));
  EXPECT_EQ(apple + 3, Apple(10));
  EXPECT_EQ(apple - 3, Apple(4));
  EXPECT_EQ(Apple(10) - apple, 3U);
  EXPECT_LT(Apple(6), apple);
  EXPECT_EQ(Apple(), Apple(0));
  EXPECT_EQ(cat("apple ", apple), "apple 7");
}

TEST(StrongNumber, RangesIncludeTheFirstNumberAndNotTheLast) {
  std::vector<Apple> apples;
  for (const Apple apple : NumberRange(Apple(3), Apple(6))) apples.push_back(apple);
  EXPECT_EQ(apples, (std::vector{Apple(3), Apple(4), Apple(5)}));
  for (const Apple apple : NumberRange(Apple(3), Apple(3))) FAIL() << apple;
}

}  // namespace
}  // namespace rp
