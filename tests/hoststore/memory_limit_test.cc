#include "hoststore/memory/memory_limit.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/common/temp_directory.h"

namespace rp {
namespace {

// An artificial /proc and /sys.
class Machine {
 public:
  Machine() { write("proc/meminfo", "MemTotal: 4000 kB\nMemFree: 100 kB\nMemAvailable:    2000 kB\n"); }
  void write(const std::string& path, const std::string& content) const {
    std::filesystem::create_directories((directory_.path() / path).parent_path());
    std::ofstream(directory_.path() / path) << content;
  }
  [[nodiscard]] std::uint64_t available() const { return available_memory(directory_.path().string()); }

 private:
  TempDirectory directory_;
};

constexpr std::uint64_t kMachine = 2000 * 1024;

TEST(AvailableMemory, IsTheMachinesWhereNoGroupLimitsIt) {
  const Machine machine;
  EXPECT_EQ(machine.available(), kMachine);
  machine.write("proc/self/cgroup", "0::/user.slice\n");
  machine.write("sys/fs/cgroup/user.slice/memory.max", "max\n");
  machine.write("sys/fs/cgroup/user.slice/memory.current", "1234\n");
  EXPECT_EQ(machine.available(), kMachine);
}

TEST(AvailableMemory, IsWhatAVersion2GroupLeaves) {
  const Machine machine;
  machine.write("proc/self/cgroup", "0::/job\n");
  machine.write("sys/fs/cgroup/job/memory.max", "500000\n");
  machine.write("sys/fs/cgroup/job/memory.current", "200000\n");
  EXPECT_EQ(machine.available(), 300'000U);
}

TEST(AvailableMemory, IsTheLeastThatAnyGroupOnTheWayToTheRootLeaves) {
  const Machine machine;
  machine.write("proc/self/cgroup", "0::/outer/inner\n");
  machine.write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  machine.write("sys/fs/cgroup/outer/inner/memory.current", "1000\n");
  machine.write("sys/fs/cgroup/outer/memory.max", "700000\n");
  machine.write("sys/fs/cgroup/outer/memory.current", "600000\n");
  EXPECT_EQ(machine.available(), 100'000U);
  machine.write("sys/fs/cgroup/memory.max", "50000\n");  // a container sees its own group as the root
  machine.write("sys/fs/cgroup/memory.current", "20000\n");
  EXPECT_EQ(machine.available(), 30'000U);
}

TEST(AvailableMemory, IsNothingWhereMoreIsUsedThanAllowed) {
  const Machine machine;
  machine.write("proc/self/cgroup", "0::/\n");
  machine.write("sys/fs/cgroup/memory.max", "1000\n");
  machine.write("sys/fs/cgroup/memory.current", "1001\n");
  EXPECT_EQ(machine.available(), 0U);
}

TEST(AvailableMemory, IsWhatAVersion1GroupLeaves) {
  const Machine machine;
  machine.write("proc/self/cgroup", "12:cpu,cpuacct:/other\n5:memory:/job/a\n0::/\n");
  machine.write("sys/fs/cgroup/memory/job/a/memory.limit_in_bytes", "9223372036854771712\n");  // v1's "max"
  machine.write("sys/fs/cgroup/memory/job/a/memory.usage_in_bytes", "100000\n");
  EXPECT_EQ(machine.available(), kMachine);
  machine.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "500000\n");
  machine.write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "400000\n");
  EXPECT_EQ(machine.available(), 100'000U);
}

TEST(AvailableMemory, CountsThePageCacheOfTheGroupAsAvailable) {
  const Machine machine;
  machine.write("proc/self/cgroup", "0::/job\n");
  machine.write("sys/fs/cgroup/job/memory.max", "500000\n");
  machine.write("sys/fs/cgroup/job/memory.current", "450000\n");
  machine.write("sys/fs/cgroup/job/memory.stat",
                "anon 40000\nfile 400000\nshmem 100000\ninactive_file 200000\nactive_file 100000\n");
  EXPECT_EQ(machine.available(), 350'000U);
  machine.write("proc/self/cgroup", "5:memory:/job\n");
  machine.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "500000\n");
  machine.write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "450000\n");
  machine.write("sys/fs/cgroup/memory/job/memory.stat",
                "inactive_file 7\ntotal_inactive_file 50000\ntotal_active_file 0\n");
  EXPECT_EQ(machine.available(), 100'000U);
}

TEST(AvailableMemory, OfThisMachineIsSomething) { EXPECT_GT(available_memory(), std::uint64_t{1} << 20); }

}  // namespace
}  // namespace rp
