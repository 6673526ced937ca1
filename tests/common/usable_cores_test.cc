#include "common/system/usable_cores.h"

#include <gtest/gtest.h>

namespace rp {
namespace {

TEST(UsableCores, AreTheAllowedOnesCutToTheQuotaRoundedUp) {
  const CpuList eight = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(usable_cores(eight, std::nullopt), 8);
  EXPECT_EQ(usable_cores(eight, 2.0), 2);
  EXPECT_EQ(usable_cores(eight, 1.5), 2);
  EXPECT_EQ(usable_cores(eight, 100.0), 8);
  EXPECT_EQ(usable_cores(eight, 0.1), 1);
  EXPECT_EQ(usable_cores({}, std::nullopt), 1);
}

TEST(UsableCores, OfThisMachineAreSomeOfTheAllowedOnes) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), static_cast<int>(allowed_cpus().size()));
}

TEST(OptimizerThreads, LeaveTwoCoresToEachWorkerOnAGpu) {
  EXPECT_EQ(optimizer_threads(16, 0), 16) << "workers on the processor";
  EXPECT_EQ(optimizer_threads(16, 1), 14);
  EXPECT_EQ(optimizer_threads(16, 4), 8);
  EXPECT_EQ(optimizer_threads(16, 8), 1) << "at least one";
  EXPECT_EQ(optimizer_threads(2, 1), 1);
}

}  // namespace
}  // namespace rp
