#include "common/lifecycle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace rp::test {
namespace {

enum class Light : std::uint8_t { kOff, kOn, kBroken };

constexpr LifecycleTable<Light, 3, 3> kLight = {"light",
                                                {"off", "on", "broken"},
                                                {{{Light::kOff, Light::kOn, "switched on"},
                                                  {Light::kOn, Light::kOff, "switched off"},
                                                  {Light::kOn, Light::kBroken, "burnt out"}}}};

TEST(Lifecycle, BeginsInTheFirstStateAndMovesAsTheTableAllows) {
  Lifecycle<kLight> light;
  EXPECT_TRUE(light.is(Light::kOff));
  light.move_to(Light::kOn);
  light.move_to(Light::kOff);
  light.move_to(Light::kOn);
  light.move_to(Light::kBroken);
  EXPECT_TRUE(light.is(Light::kBroken));
  EXPECT_EQ(light.state(), Light::kBroken);
  EXPECT_STREQ(light.name(), "broken");
}

TEST(Lifecycle, AbortsOnAChangeThatIsNotInTheTable) {
  Lifecycle<kLight> light;
  EXPECT_DEATH(light.move_to(Light::kBroken), "that light may change from 'off' to 'broken' does not hold");
  EXPECT_DEATH(light.move_to(Light::kOff), "from 'off' to 'off'");
}

// In a child process, because the variable is read once.
TEST(Lifecycle, PrintsChangesWithTheirReasonsIfAsked) {
  const auto change = [] {
    setenv("RP_LOG_STATES", "1", 1);
    Lifecycle<kLight> light;
    light.move_to(Light::kOn, 7);
    light.move_to(Light::kOff, 7, 2);
    light.move_to(Light::kOn);
    light.move_to(Light::kBroken);
    std::exit(0);
  };
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(change(), testing::ExitedWithCode(0),
              "roundpipe: light 7: off -> on \\(switched on\\)\n"
              "roundpipe: light 7 of pipeline 2: on -> off \\(switched off\\)\n"
              "roundpipe: light: off -> on \\(switched on\\)\nroundpipe: light: on -> broken \\(burnt out\\)\n");
}

}  // namespace
}  // namespace rp::test
