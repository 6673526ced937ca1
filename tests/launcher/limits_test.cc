#include "launcher/machine/limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "tests/common/temp_directory.h"

namespace rp {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;
constexpr std::uint64_t kGib = std::uint64_t{1} << 30;

// A machine without problems.
MachineLimits good_machine() {
  return {.memory_bytes = 64 * kGib,
          .available_bytes = 60 * kGib,
          .shm_bytes = 32 * kGib,
          .shm_free_bytes = 32 * kGib,
          .open_files = 1 << 20,
          .map_count = 65530,
          .huge_pages = "always",
          .kernel = "6.1.0-18-amd64"};
}

LimitLine line_of(const MachineLimits& limits, const std::string& key) {
  for (const LimitLine& line : limit_lines(limits)) {
    if (line.key == key) return line;
  }
  return {.value = "no such line"};
}

TEST(Limits, OfAGoodMachineNeedNoAdvice) {
  for (const LimitLine& line : limit_lines(good_machine())) EXPECT_EQ(line.advice, "") << line.name;
  EXPECT_EQ(line_of(good_machine(), "memory").value, "64.0 GiB, 60.0 GiB available");
  EXPECT_EQ(line_of(good_machine(), "locked_memory").value, "no limit");
}

TEST(Limits, EachThatIsLowHasItsRemedy) {
  MachineLimits limits = good_machine();
  limits.group_left_bytes = 8 * kGib;
  EXPECT_THAT(line_of(limits, "group_memory").advice, HasSubstr("memory limit of the container"));
  limits.shm_bytes = limits.shm_free_bytes = 64 << 20;
  EXPECT_EQ(line_of(limits, "shm").value, "64.0 MiB, 64.0 MiB free");
  EXPECT_THAT(line_of(limits, "shm").advice, HasSubstr("memfd"));
  limits.locked_bytes = 8 << 20;
  EXPECT_THAT(line_of(limits, "locked_memory").advice, HasSubstr("ulimit -l unlimited"));
  for (const char* setting : {"never", "deny"}) {
    limits.huge_pages = setting;
    EXPECT_THAT(line_of(limits, "huge_pages").advice,
                HasSubstr("as root: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"))
        << setting;
  }
  limits.map_count = 1000;
  EXPECT_THAT(line_of(limits, "map_count").advice, HasSubstr("sysctl -w vm.max_map_count=65530"));
  limits.open_files = 256;
  EXPECT_THAT(line_of(limits, "open_files").advice, HasSubstr("hard limit"));
  for (const char* key : {"map_count", "open_files"}) EXPECT_TRUE(line_of(limits, key).is_problem) << key;
  for (const char* key : {"shm", "locked_memory", "huge_pages"}) EXPECT_FALSE(line_of(limits, key).is_problem) << key;
}

TEST(Limits, KernelsThatRefuseToRegisterMuchAtOnceAreNamed) {
  MachineLimits limits = good_machine();
  for (const auto& [release, is_one] : std::vector<std::pair<const char*, bool>>{{"6.10.14", false},
                                                                                 {"6.11.0-9-generic", true},
                                                                                 {"6.13.12", true},
                                                                                 {"6.14.0", false},
                                                                                 {"7.0.1", false},
                                                                                 {"5.15.0-1", false},
                                                                                 {"", false}}) {
    limits.kernel = release;
    EXPECT_EQ(!line_of(limits, "kernel").advice.empty(), is_one) << release;
  }
  limits.kernel = "6.12.1";
  EXPECT_THAT(line_of(limits, "kernel").advice, HasSubstr("refuse to register more than 2 GB in one call"));
  EXPECT_FALSE(line_of(limits, "kernel").is_problem);
}

TEST(Limits, MovableMemoryIsAProblemIfItIsMostOfTheMemory) {
  MachineLimits limits = good_machine();
  EXPECT_EQ(line_of(limits, "movable_memory").value, "none");
  limits.movable_bytes = 16 * kGib;
  EXPECT_EQ(line_of(limits, "movable_memory").value, "16.0 GiB");
  EXPECT_THAT(line_of(limits, "movable_memory").advice, HasSubstr("boot without movable_node"));
  EXPECT_FALSE(line_of(limits, "movable_memory").is_problem);
  limits.movable_bytes = 40 * kGib;
  EXPECT_TRUE(line_of(limits, "movable_memory").is_problem);
}

TEST(Limits, AGroupsNumberBeyondAllMemoryIsNoLimit) {
  MachineLimits limits = good_machine();
  limits.group_left_bytes = std::uint64_t{1} << 62;
  EXPECT_EQ(line_of(limits, "group_memory").value, "no limit");
  limits.group_left_bytes = 8 * kGib;
  EXPECT_EQ(line_of(limits, "group_memory").value, "8.00 GiB left");
}

TEST(Limits, JustEnoughIsEnough) {
  MachineLimits limits = good_machine();
  limits.group_left_bytes = limits.available_bytes;
  limits.shm_free_bytes = limits.available_bytes / 2;
  limits.locked_bytes = limits.memory_bytes;
  limits.open_files = 1024;
  limits.huge_pages = "advise";  // enough, because the host store requests huge pages
  for (const LimitLine& line : limit_lines(limits)) EXPECT_EQ(line.advice, "") << line.name;
}

TEST(Limits, AreReadFromTheMachinesFiles) {
  const TempDirectory directory_of_root;
  const std::string root = directory_of_root.path();
  for (const char* directory : {"proc/sys/vm", "proc/sys/kernel", "sys/kernel/mm/transparent_hugepage"})
    fs::create_directories(fs::path(root) / directory);
  std::ofstream(root + "/proc/meminfo") << "MemTotal:       1024 kB\nMemFree: 1 kB\nMemAvailable:    512 kB\n";
  std::ofstream(root + "/proc/sys/vm/max_map_count") << "262144\n";
  std::ofstream(root + "/sys/kernel/mm/transparent_hugepage/shmem_enabled")
      << "always within_size advise [never] deny force\n";
  std::ofstream(root + "/proc/sys/kernel/osrelease") << "6.12.9-test\n";
  std::ofstream(root + "/proc/zoneinfo")
      << "Node 0, zone   Normal\n  pages free     5\n        present  90\n        managed  80\n"
         "Node 0, zone  Movable\n  pages free     5\n        present  70\n        managed  60\n"
         "Node 1, zone  Movable\n        managed  4\nNode 1, zone   Device\n        managed  7\n";
  const MachineLimits limits = observe_limits(root);
  EXPECT_EQ(limits.kernel, "6.12.9-test");
  EXPECT_EQ(limits.movable_bytes, 64U * static_cast<unsigned>(getpagesize()));
  EXPECT_EQ(limits.memory_bytes, 1024U * 1024);
  EXPECT_EQ(limits.available_bytes, 512U * 1024);
  EXPECT_EQ(limits.map_count, 262144U);
  EXPECT_EQ(limits.huge_pages, "never");
  EXPECT_EQ(limits.shm_bytes, std::nullopt);
  EXPECT_EQ(line_of(limits, "shm").value, "none");
  EXPECT_GT(limits.open_files, 0U);
}

TEST(Limits, WhatTheMachineDoesNotTellIsUnknown) {
  const MachineLimits limits = observe_limits("/nowhere");
  EXPECT_EQ(line_of(limits, "map_count").value, "unknown");
  EXPECT_EQ(line_of(limits, "map_count").advice, "");
  for (const char* key : {"huge_pages", "kernel"}) EXPECT_EQ(line_of(limits, key).value, "unknown") << key;
  EXPECT_EQ(line_of(limits, "movable_memory").value, "none");
  for (const LimitLine& line : limit_lines(limits)) {
    if (line.key == "huge_pages" || line.key == "kernel" || line.key == "movable_memory") {
      EXPECT_EQ(line.advice, "") << line.key;
    }
  }
}

}  // namespace
}  // namespace rp
