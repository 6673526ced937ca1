#include "common/files/crc32.h"

#include <gtest/gtest.h>

#include <string>

namespace rp {
namespace {

TEST(Crc32, GivesTheCheckValueOfTheStandard) { EXPECT_EQ(crc32(0, "123456789", 9), 0xCBF43926U); }

TEST(Crc32, OfPiecesIsThatOfTheWhole) {
  const std::string text = "The elementary particle of bogosity, longer than a few blocks of eight";
  const std::uint32_t whole = crc32(0, text.data(), text.size());
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(crc32(crc32(0, text.data(), cut), text.data() + cut, text.size() - cut), whole);
  }
}

}  // namespace
}  // namespace rp
