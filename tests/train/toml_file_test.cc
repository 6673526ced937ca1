#include "train/toml_file.h"

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
  const auto entries = read("# settings\nb = 1_000\na = 0.5 # half\n\"quoted.key\" = 'text'\nswitch = true\nhex = 0x10\nlist = [1]\n[table]\nx = 1\n");
  const std::vector<std::pair<std::string, std::optional<std::string>>> expected = {
      {"b", "1000"}, {"a", "0.5"}, {"quoted.key", "text"}, {"switch", "true"}, {"hex", "16"}, {"list", std::nullopt}, {"table", std::nullopt}};
  ASSERT_EQ(entries.size(), expected.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(std::pair(entries[i].key, entries[i].text), expected[i]);
    EXPECT_EQ(entries[i].line, i + 2);
  }
}

TEST(TomlFile, MayHaveAnyTextInStringsAndComments) {
  const auto entries = read("a = \"b\\\"\u00e9\" # \u00fc'\"\nb = '\u00e9\\'\nc = \"\"\"one \"two\" \u00e9\n\u00e9\"\"\"\"\nd = '''\u2028'''\n\"\u00e9\" = 1\n");
  ASSERT_EQ(entries.size(), 5U);
  EXPECT_EQ(entries[0].text, "b\"\u00e9");
  EXPECT_EQ(entries[1].text, "\u00e9\\");
  EXPECT_EQ(entries[2].text, "one \"two\" \u00e9\n\u00e9\"");
  EXPECT_EQ(entries[3].text, "\u2028");
  EXPECT_EQ(entries[4].key, "\u00e9");
}

// Undefined in toml++ 3.3: its assertions failed, or it ran into what it calls unreachable.
TEST(TomlFile, RefusesWhatTomlPlusPlusHasNoAnswerTo) {
  for (const char* text : {"[[[[", "[[[", "a = 1\n[[[["}) expect_refusal({"run.toml: is no TOML"}, [&] { (void)read(text); });
  for (const char* text : {"\u00e9", "a\u00e9 = 1", "[a\u00e9]", "a.\u00e9 = 1", "a = \u00e9", "a = 1\u00e9", "a = {b\u00e9 = 1}", "a\u00a0= 1"}) {
    expect_refusal({"run.toml:2: a character that is not ASCII stands outside of quotes"}, [&] { (void)read("# \u00e9\n" + std::string(text)); });
  }
}

TEST(TomlFile, ThatNestsDeeplyTakesNoStack) {
  std::string keys = "a";
  for (int i = 0; i < 100'000; ++i) keys += ".a";
  expect_refusal({"run.toml:1: has more than 1000 dots"}, [&] { (void)read(keys + " = 1\n"); });
  expect_refusal({"run.toml:1: has more than 1000 dots"}, [&] { (void)read("[" + keys + "]\n"); });
  expect_refusal({"run.toml:1: "}, [&] { (void)read("a = " + std::string(100'000, '[')); });
  expect_refusal({"run.toml: is no TOML"}, [&] { (void)read(std::string(100'000, '[')); });
}

}  // namespace
}  // namespace rp
