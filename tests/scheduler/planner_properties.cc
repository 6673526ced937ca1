// Checks the planner on many random tasks.
#include <gtest/gtest.h>

#include "tests/scheduler/random_tasks.h"

namespace rp::test {
namespace {

TEST(PlannerProperties, HoldForTenThousandFastPlans) {
  for (std::uint64_t seed = 1; seed <= 10'000 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const PlanTask task = random_task(seed);
    expect_good_plan(task, fast_plan(task));
  }
}

TEST(PlannerProperties, HoldForAHundredThoroughPlans) {
  for (std::uint64_t seed = 1; seed <= 100 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const PlanTask task = random_task(20'000 + seed);
    expect_good_plan(task, thorough_plan(task, std::chrono::seconds(1)));
  }
}

}  // namespace
}  // namespace rp::test
