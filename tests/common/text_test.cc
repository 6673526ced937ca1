#include "common/text.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace rp
