#include "common/printable.h"

#include <gtest/gtest.h>

namespace rp {
namespace {

TEST(Printable, HasNoControlCharactersButEndsOfLinesAndTabs) {
  EXPECT_EQ(printable("a file.txt\n\tsecond line"), "a file.txt\n\tsecond line");
  EXPECT_EQ(printable("\x1b]0;title\x07\r\x7f"), "\\x1b]0;title\\x07\\x0d\\x7f");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J gr\xc3\xbc\xc3\x9f"
                      "e"),
            "\\xc2\\x9b2J gr\xc3\xbc\xc3\x9f"
            "e")
      << "other letters stay";
  EXPECT_EQ(printable("ends in \xc2"), "ends in \xc2");
}

}  // namespace
}  // namespace rp
