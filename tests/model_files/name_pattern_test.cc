#include "model_files/name_pattern.h"

#include <gtest/gtest.h>

#include "tests/common/expect_refusal.h"

namespace rp {
namespace {

NamePattern pattern(const std::string& text) { return NamePattern("the pattern", text); }

TEST(NamePattern, MatchesAllOfANameOrIsFoundInIt) {
  const NamePattern layers = pattern("model\\.layers\\.(0|1[0-9]|[^0-9.])\\.mlp\\.\\w+_proj");
  EXPECT_TRUE(layers.matches_all_of("model.layers.12.mlp.up_proj"));
  EXPECT_FALSE(layers.matches_all_of("model.layers.2.mlp.up_proj"));
  EXPECT_FALSE(layers.matches_all_of("model.layers.12.mlp.up_proj.weight"));
  EXPECT_TRUE(layers.is_found_in("base.model.layers.12.mlp.up_proj.weight"));
  EXPECT_TRUE(pattern("^embed|norm$").is_found_in("embed_tokens"));
  EXPECT_TRUE(pattern("^embed|norm$").is_found_in("model.norm"));
  EXPECT_FALSE(pattern("^embed|norm$").is_found_in("model.embed_tokens"));
  EXPECT_FALSE(pattern("^embed|norm$").is_found_in("norm.weight"));
  EXPECT_FALSE(pattern("(?!model)m.*").matches_all_of("model.norm"));
  EXPECT_TRUE(pattern("(?:[[:alpha:]()]{2,5}\\.)+\\d{1,3}").matches_all_of("model.(a).17"));
}

// Seconds, minutes and longer with std::regex as it comes.
TEST(NamePattern, ThatCanMatchInManyWaysTakesNoLonger) {
  const std::string name = "model.layers.7.mlp.experts.gate_up_projection.weight.that.is.rather.long";
  for (const char* text : {"(.*)*(.*)*(.*)*!", "(a+|[a-z.0-9_]+)+!", "(.|.)*(.|.)*!", "((a?b?.?)*)*!"}) {
    EXPECT_FALSE(pattern(text).matches_all_of(name)) << text;
    EXPECT_FALSE(pattern(text).is_found_in(name)) << text;
  }
}

TEST(NamePattern, IsRefusedWhereItWouldTakeTheStackOrTheMemory) {
  for (const std::string& text : {std::string(3000, '('), std::string(3000, 'a'), std::string(1001, '(') + std::string(1001, ')'),
                                  std::string("((a{0,100}){0,100}){0,100}"), std::string("a{99999999999999999999}"), std::string("(a*){1400}"), std::string("((((abc){50}){50}){2}){20}"),
                                  std::string("[)]").append(2000, '(')}) {
    expect_error(ExitCode::kUsage, {"the pattern", "too large a regular expression"}, [&] { (void)pattern(text); });
  }
  for (const char* text : {"(", "[z-a]", "*", "a{2", "\\", "[[:what:]]", "(a)\\1", "a\\9223372036854775808"}) {
    expect_error(ExitCode::kUsage, {"the pattern", "is no regular expression"}, [&] { (void)pattern(text); });
  }
}

TEST(NamePattern, MayBeAsLargeAsItsLimits) {
  std::string many = "model";
  for (int i = 0; i < 900; ++i) many += "|l" + std::to_string(i % 10) + "\\.x";
  EXPECT_TRUE(pattern(many).matches_all_of("l7.x"));
  EXPECT_TRUE(pattern(std::string(900, 'a')).matches_all_of(std::string(900, 'a')));
  std::string nested(450, '(');
  nested += 'a';
  nested.append(450, ')');
  EXPECT_TRUE(pattern(nested).matches_all_of("a"));
  std::string repeated;
  for (int i = 0; i < 900; ++i) repeated += "ab";
  EXPECT_TRUE(pattern("(ab){900}c").matches_all_of(repeated + "c"));
}

}  // namespace
}  // namespace rp
