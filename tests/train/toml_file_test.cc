#include "train/settings/toml_file.h"

#include <gtest/gtest.h>

#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"

namespace rp {
namespace {

std::vector<TomlEntry> read(const std::string& text) {
  const TempDirectory directory;
  return read_toml_file(directory.write("run.toml", text));
}

TEST(TomlFile, GivesScalarsAsTheyWouldStandOnACommandLine) {
  const auto entries = read(
      "# settings\nb = 1_000\na = 0.5 # half\n\"quoted.key\" = 'text'\nswitch = true\nhex = 0x10\nlist = "
      "[1]\n[table]\nx = 1\n");
  const std::vector<std::pair<std::string, std::optional<std::string>>> expected = {
      {"b", "1000"}, {"a", "0.5"},           {"quoted.key", "text"}, {"switch", "true"},
      {"hex", "16"}, {"list", std::nullopt}, {"table", std::nullopt}};
  ASSERT_EQ(entries.size(), expected.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(std::pair(entries[i].key, entries[i].text), expected[i]);
    EXPECT_EQ(entries[i].line, i + 2);
  }
}

TEST(TomlFile, MayHaveAnyTextInStringsAndComments) {
  const auto entries = read(
      "a = \"b\\\"\u00e9\" # \u00fc'\"\nb = '\u00e9\\'\nc = \"\"\"one \"two\" \u00e9\n\u00e9\"\"\"\"\nd = "
      "'''\u2028'''\n\"\u00e9\" = 1\n");
  ASSERT_EQ(entries.size(), 5U);
  EXPECT_EQ(entries[0].text, "b\"\u00e9");
  EXPECT_EQ(entries[1].text, "\u00e9\\");
  EXPECT_EQ(entries[2].text, "one \"two\" \u00e9\n\u00e9\"");
  EXPECT_EQ(entries[3].text, "\u2028");
  EXPECT_EQ(entries[4].key, "\u00e9");
}

// In toml++ 3.3 these texts cause undefined behaviour: failed assertions, or code that it marks as
// unreachable.
TEST(TomlFile, HasAnAnswerWhereTomlPlusPlusHasNone) {
  for (const char* text : {"[[[[", "[[[", "a = 1\n[[[["})
    expect_refusal({"run.toml: is no TOML"}, [&] { (void)read(text); });
  for (const char* text : {"\u00e9", "a\u00a0\u00e9", "a = \u00e9", "a = 1\u00e9", "a = 1'''\u00e9",
                           "a = 1979-05-27\u00e9", "a = {b\u00e9 1}", "a.\u00e9 1"}) {
    expect_refusal({"run.toml:2: "}, [&] { (void)read("# \u00e9\n" + std::string(text)); });
  }
  EXPECT_EQ(read("a\u00e9 = 1\n")[0].key, "a\u00e9") << "and there is no such setting";
}

TEST(TomlFile, IsUtf8AndKeepsItsLetters) {
  for (const char* text :
       {"a = \"\xff\"", "# \xc0\x80", "a = '\xed\xa0\x80'", "a = '\xf4\x90\x80\x80'", "\xe2\x82", "# \xc3\x28"}) {
    expect_refusal({"run.toml:2: is not valid UTF-8"},
                   [&] { (void)read("# fine: \u00e9 \u20ac \U0001f600\n" + std::string(text) + "\n"); });
  }
  const auto entries = read("a = 'Z Z\u00fcrich Z5a Zc3'\nZ = \"\\u00fc\"\n");
  EXPECT_EQ(entries[0].text, "Z Z\u00fcrich Z5a Zc3");
  EXPECT_EQ(entries[1].key, "Z");
  EXPECT_EQ(entries[1].text, "\u00fc");
  expect_refusal({"run.toml:1: \\u005A is not supported; write Z"}, [] { (void)read("a = \"\\u005A41\""); });
}

TEST(TomlFile, ThatNestsDeeplyTakesNoStack) {
  std::string keys = "a";
  for (int i = 0; i < 100'000; ++i) keys += ".a";
  expect_refusal({"run.toml:1: has more than 2000 dots"}, [&] { (void)read(keys + " = 1\n"); });
  expect_refusal({"run.toml:1: has more than 2000 dots"}, [&] { (void)read("[" + keys + "]\n"); });
  expect_refusal({"run.toml:1: "}, [&] { (void)read("a = " + std::string(100'000, '[')); });
  expect_refusal({"run.toml: is no TOML"}, [&] { (void)read(std::string(100'000, '[')); });
}

}  // namespace
}  // namespace rp
