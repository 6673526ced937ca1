#include "common/usable_cores.h"

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

}  // namespace
}  // namespace rp
