#include "launcher/launch_plan.h"

#include <gtest/gtest.h>

#include "hoststore/control.h"

namespace rp {
namespace {

std::size_t num_workers_on(int usable_cores) {
  LaunchOptions options;
  options.command = {"/bin/sh"};
  const LocalMachine machine{.usable_cores = usable_cores, .nodes = {{0, 1}}};
  return make_launch_plan(options, machine, "").processes.size() - 1;
}

TEST(LaunchPlan, TheDefaultIsAWorkerACoreAsFarAsTheStoreHasRoom) {
  EXPECT_EQ(num_workers_on(3), 3U);
  EXPECT_EQ(num_workers_on(192), static_cast<std::size_t>(kMaxWorkers));
}

}  // namespace
}  // namespace rp
