#include "common/checked_files/json_file.h"

#include <gtest/gtest.h>

#include "tests/common/expect_refusal.h"

namespace rp {
namespace {

TEST(JsonFile, WholeNumbersAreTakenWithinTheirLimits) {
  const nlohmann::json object = parse_json_file("a.json", R"({"zero": 0, "less": -1, "most": 9223372036854775807})");
  EXPECT_EQ(whole_number("a.json", object, "zero"), 0);
  EXPECT_EQ(whole_number("a.json", object, "less", -1), -1);
  EXPECT_EQ(whole_number("a.json", object, "most"), INT64_MAX);
  expect_refusal({"a.json", "-1", "\"less\"", "from 0 to 7"},
                 [&] { (void)whole_number("a.json", object, "less", 0, 7); });
  expect_refusal({"9223372036854775807", "\"most\""}, [&] { (void)whole_number("a.json", object, "most", 0, 7); });
  EXPECT_THROW((void)whole_number("a.json", object, "none"), nlohmann::json::out_of_range);
}

// The parser turns a number beyond 64 bits, or with a fraction or an exponent, into a
// floating-point number, which must not silently become an integer.
TEST(JsonFile, WhatIsNoIntegerIsRefused) {
  for (const char* value : {"9223372036854775808", "18446744073709551615", "18446744073709551616",
                            "-9223372036854775809", "1e300", "1.5", "2.0", "\"1\"", "null", "true", "[1]"}) {
    SCOPED_TRACE(value);
    const nlohmann::json object = parse_json_file("a.json", std::string(R"({"round": )") + value + "}");
    expect_refusal({"a.json", "\"round\""}, [&] { (void)whole_number("a.json", object, "round"); });
  }
}

}  // namespace
}  // namespace rp
