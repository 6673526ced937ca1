#include "model_files/name_pattern.h"

#include <gtest/gtest.h>

#include "tests/common/expect_refusal.h"

namespace rp {
namespace {

NamePattern whole(const std::string& text) { return NamePattern("the pattern", text, NamePattern::Extent::kWhole); }
NamePattern anywhere(const std::string& text) {
  return NamePattern("the pattern", text, NamePattern::Extent::kAnywhere);
}

TEST(NamePattern, MatchesAllOfANameOrIsFoundInIt) {
  const std::string expression = "model\\.layers\\.(0|1[0-9]|[^0-9.])\\.mlp\\.\\w+_proj";
  const NamePattern layers = whole(expression);
  EXPECT_TRUE(layers.matches("model.layers.12.mlp.up_proj"));
  EXPECT_FALSE(layers.matches("model.layers.2.mlp.up_proj"));
  EXPECT_FALSE(layers.matches("model.layers.12.mlp.up_proj.weight"));
  EXPECT_TRUE(anywhere(expression).matches("base.model.layers.12.mlp.up_proj.weight"));
  EXPECT_TRUE(anywhere("^embed|norm$").matches("embed_tokens"));
  EXPECT_TRUE(anywhere("^embed|norm$").matches("model.norm"));
  EXPECT_FALSE(anywhere("^embed|norm$").matches("model.embed_tokens"));
  EXPECT_FALSE(anywhere("^embed|norm$").matches("norm.weight"));
  EXPECT_FALSE(whole("(?!model)m.*").matches("model.norm"));
  EXPECT_TRUE(whole("(?:[[:alpha:]()]{2,5}\\.)+\\d{1,3}").matches("model.(a).17"));
}

// With the default std::regex these take seconds, minutes and longer.
TEST(NamePattern, ThatCanMatchInManyWaysTakesNoLonger) {
  const std::string name = "model.layers.7.mlp.experts.gate_up_projection.weight.that.is.rather.long";
  for (const char* text : {"(.*)*(.*)*(.*)*!", "(a+|[a-z.0-9_]+)+!", "(.|.)*(.|.)*!", "((a?b?.?)*)*!"}) {
    EXPECT_FALSE(whole(text).matches(name)) << text;
    EXPECT_FALSE(anywhere(text).matches(name)) << text;
  }
}

TEST(NamePattern, IsRefusedWhereItWouldTakeTheStackOrTheMemory) {
  for (const std::string& text :
       {std::string(3000, '('), std::string(3000, 'a'), std::string(1001, '(') + std::string(1001, ')'),
        std::string("((a{0,100}){0,100}){0,100}"), std::string("a{99999999999999999999}"), std::string("(a*){1400}"),
        std::string("((((abc){50}){50}){2}){20}"), std::string("[)]").append(2000, '(')}) {
    expect_error(ExitCode::kUsage, {"the pattern", "too large a regular expression"}, [&] { (void)anywhere(text); });
  }
  for (const char* text : {"(", "[z-a]", "*", "a{2", "\\", "[[:what:]]", "(a)\\1", ")(", "a\\9223372036854775808"}) {
    expect_error(ExitCode::kUsage, {"the pattern", "is no regular expression"}, [&] { (void)whole(text); });
    expect_error(ExitCode::kUsage, {"the pattern", "is no regular expression"}, [&] { (void)anywhere(text); });
  }
}

TEST(NamePattern, MayBeAsLargeAsItsLimits) {
  std::string many = "model";
  for (int i = 0; i < 900; ++i) many += "|l" + std::to_string(i % 10) + "\\.x";
  EXPECT_TRUE(whole(many).matches("l7.x"));
  EXPECT_TRUE(whole(std::string(900, 'a')).matches(std::string(900, 'a')));
  std::string nested(450, '(');
  nested += 'a';
  nested.append(450, ')');
  EXPECT_TRUE(whole(nested).matches("a"));
  std::string repeated;
  for (int i = 0; i < 900; ++i) repeated += "ab";
  EXPECT_TRUE(whole("(ab){900}c").matches(repeated + "c"));
}

}  // namespace
}  // namespace rp
