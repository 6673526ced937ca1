#include "hoststore/memory/page_populator.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "hoststore/memory/segment.h"

namespace rp {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

TEST(PagePopulator, PopulatesEveryRangeWithAnyNumberOfThreads) {
  for (const int num_threads : {1, 2, 5}) {
    Segment segment = Segment::create(Backing::kMemfd, "test");
    segment.lengthen(100 * kMiB);  // reserves nothing, so what is allocated was populated
    const Mapping first(segment, Access::kReadWrite, 0, 70 * kMiB);
    const Mapping second(segment, Access::kReadWrite, 80 * kMiB, 20 * kMiB);
    first.data()[3] = std::byte{9};
    PagePopulator populator({{first.data(), first.bytes()}, {second.data(), second.bytes()}}, num_threads);
    EXPECT_EQ(populator.wait(), 0);
    EXPECT_EQ(segment.allocated_bytes(), 90 * kMiB);
    EXPECT_EQ(first.data()[3], std::byte{9});
  }
}

TEST(PagePopulator, SaysWhatTheKernelRefusedAndEndsEarlyWhenItIsDestroyed) {
  Segment segment = Segment::create(Backing::kMemfd, "test");
  segment.lengthen(64 * kMiB);
  const Mapping read_only(segment, Access::kReadOnly, 0, 64 * kMiB);
  PagePopulator refused({{read_only.data(), read_only.bytes(), PageAccess::kWrite}}, 2);
  EXPECT_EQ(refused.wait(), EINVAL);
  PagePopulator reading({{read_only.data(), read_only.bytes(), PageAccess::kRead}}, 1);
  EXPECT_EQ(reading.wait(), 0);
  const PagePopulator left({{read_only.data(), read_only.bytes(), PageAccess::kRead}}, 1);
}

TEST(PagePopulator, UsesFewThreadsOfALargeMachine) {
  EXPECT_EQ(population_threads(0), 1);
  EXPECT_EQ(population_threads(2), 2);
  EXPECT_EQ(population_threads(128), 16);
}

}  // namespace
}  // namespace rp
