#include "common/system/cgroup.h"

#include <gtest/gtest.h>
#include <fstream>

#include "tests/common/temp_directory.h"

namespace rp {
namespace {

namespace fs = std::filesystem;

// An artificial /sys/fs/cgroup.
class CgroupTest : public testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) const {
    const fs::path path = fs::path(mount_) / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  const TempDirectory directory_;
  const std::string mount_ = directory_.path();
};

TEST_F(CgroupTest, WithoutFilesThereIsNoLimit) {
  const Cgroup group(mount_, "0::/job\n");
  EXPECT_EQ(group.cpu_quota(), std::nullopt);
  EXPECT_EQ(group.num_oom_kills(), std::nullopt);
}

TEST_F(CgroupTest, TheTightestLevelOfVersion2Counts) {
  write("slice/job/cpu.max", "400000 100000\n");
  write("slice/cpu.max", "150000 100000\n");
  write("cpu.max", "max 100000\n");
  EXPECT_EQ(Cgroup(mount_, "0::/slice/job\n").cpu_quota(), 1.5);
}

TEST_F(CgroupTest, Version1IsReadFromItsControllersDirectory) {
  write("cpu,cpuacct/job/cpu.cfs_quota_us", "250000\n");
  write("cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  write("cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  write("memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
  const Cgroup group(mount_, "3:cpu,cpuacct:/job\n2:memory:/job\n0::/\n");
  EXPECT_EQ(group.cpu_quota(), 2.5);
  EXPECT_EQ(group.num_oom_kills(), 3U);
}

TEST_F(CgroupTest, InAContainerThePathOfTheHostIsPassedOver) {
  write("cpu.max", "200000 100000\n");
  write("memory.events", "low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\n");
  const Cgroup group(mount_, "0::/docker/0123456789ab\n");
  EXPECT_EQ(group.cpu_quota(), 2.0);
  EXPECT_EQ(group.num_oom_kills(), 1U);
}

TEST_F(CgroupTest, TheLowestMemoryLimitIsNamedWithThePeakOfItsLevel) {
  write("slice/job/memory.max", "max\n");
  write("slice/job/memory.peak", "5\n");
  write("slice/memory.max", "3000\n");
  write("slice/memory.peak", "2990\n");
  EXPECT_EQ(Cgroup(mount_, "0::/slice/job\n").memory_limit(), (CgroupMemory{.limit_bytes = 3000, .peak_bytes = 2990}));
  write("slice/job/memory.max", "2000\n");
  EXPECT_EQ(Cgroup(mount_, "0::/slice/job\n").memory_limit(), (CgroupMemory{.limit_bytes = 2000, .peak_bytes = 5}));
  write("memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(Cgroup(mount_, "2:memory:/job\n").memory_limit(), std::nullopt) << "version 1 writes no limit as a number";
  write("memory/job/memory.limit_in_bytes", "4000\n");
  EXPECT_EQ(Cgroup(mount_, "2:memory:/job\n").memory_limit(), (CgroupMemory{.limit_bytes = 4000}));
}

TEST_F(CgroupTest, NonsenseInTheFilesIsNoLimit) {
  write("cpu.max", "a lot\n");
  EXPECT_EQ(Cgroup(mount_, "no colons\n0::/\n").cpu_quota(), std::nullopt);
}

}  // namespace
}  // namespace rp
