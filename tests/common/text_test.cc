#include "common/text.h"

#include <gtest/gtest.h>

#include "common/time_text.h"

namespace rp {
namespace {

TEST(Text, ByteCountsHaveThreeDigitsAndABinaryUnit) {
  EXPECT_EQ(bytes_text(0), "0 bytes");
  EXPECT_EQ(bytes_text(1023), "1023 bytes");
  EXPECT_EQ(bytes_text(1536), "1.50 KiB");
  EXPECT_EQ(bytes_text(std::uint64_t{20} << 30), "20.0 GiB");
  EXPECT_EQ(bytes_text(std::uint64_t{300} << 20), "300 MiB");
}

TEST(Text, ASlipOfTheFingersFindsItsName) {
  const std::vector<std::string> names = {"--workers", "--device", "--prefetch"};
  EXPECT_EQ(nearest_name("--worker", names), "--workers");
  EXPECT_EQ(nearest_name("--prefecth", names), "--prefetch");
  EXPECT_EQ(nearest_name("--zzzzzzzzzzz", names), "");
  EXPECT_EQ(did_you_mean("--devise", names), " (did you mean --device?)");
}

TEST(TimeText, IsANumberAboveZeroWithAUnit) {
  EXPECT_EQ(seconds_of("90s", 100), 90);
  EXPECT_EQ(seconds_of("15m", 900), 900);
  EXPECT_EQ(seconds_of("2h", 10'000), 7200);
  for (const char* wrong : {"", "s", "90", "0s", "-1h", "2d", "1.5h", "1h ", "16m", "99999999999999999999s"})
    EXPECT_EQ(seconds_of(wrong, 900), std::nullopt) << wrong;
}

}  // namespace
}  // namespace rp
