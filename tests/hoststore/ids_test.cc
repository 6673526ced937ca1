#include "hoststore/ids.h"

#include <gtest/gtest.h>

#include <type_traits>

#include "common/shm_safe.h"

namespace rp {
namespace {

static_assert(!std::is_convertible_v<std::uint64_t, SlotInEpoch> && !std::is_constructible_v<SlotInEpoch, SlotNumber>);
static_assert(!std::is_constructible_v<SlotInEpoch, EventInEpoch> &&
              !std::is_constructible_v<SlotInEpoch, Epoch, EventNumber>);
static_assert(sizeof(SlotInEpoch) == sizeof(std::uint64_t) && ShmSafe<SlotInEpoch>);

constexpr SlotNumber kLargest((std::uint64_t{1} << SlotInEpoch::kEpochShift) - 1);

TEST(InEpoch, OrdersAllNumbersOfALaterOneBehindThoseOfAnEarlierOne) {
  EXPECT_LT(SlotInEpoch(Epoch(1), kLargest), SlotInEpoch(Epoch(2), SlotNumber(0)));
  EXPECT_LT(SlotInEpoch(Epoch(1), SlotNumber(3)), SlotInEpoch(Epoch(1), SlotNumber(4)));
}

TEST(InEpoch, KnowsItsEpochAndItsNumber) {
  const SlotInEpoch slot(Epoch(65535), kLargest);
  EXPECT_EQ(slot.epoch(), Epoch(65535));
  EXPECT_EQ(slot.number(), kLargest);
  EXPECT_EQ(SlotInEpoch(slot.value()), slot);
  EXPECT_EQ(SlotInEpoch(Epoch(0), SlotNumber(12)).value(), 12U);
  EXPECT_EQ(SlotInEpoch(), SlotInEpoch(Epoch(0), SlotNumber(0)));
}

}  // namespace
}  // namespace rp
