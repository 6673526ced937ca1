#include "hoststore/memory/page_policy.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/common/temp_directory.h"

namespace rp {
namespace {

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

TEST(SharedHugePages, AreWhatTheKernelsSettingInBracketsSays) {
  const std::pair<const char*, SharedHugePages> settings[] = {
      {"always within_size advise [never] deny force", SharedHugePages::kNever},
      {"always within_size advise never [deny] force", SharedHugePages::kNever},
      {"always within_size [advise] never deny force", SharedHugePages::kAdvised},
      {"[always] within_size advise never deny force", SharedHugePages::kAlways},
      {"always [within_size] advise never deny force", SharedHugePages::kAlways},
      {"always within_size advise never deny [force]", SharedHugePages::kAlways},
  };
  for (const auto& [text, pages] : settings) {
    const TempDirectory root;
    EXPECT_EQ(shared_huge_pages(root.path().string()), SharedHugePages::kNever) << "there is no such file";
    write_file(root.path() / "sys/kernel/mm/transparent_hugepage/shmem_enabled", text);
    EXPECT_EQ(shared_huge_pages(root.path().string()), pages) << text;
  }
}

TEST(MemoryNodes, AreThoseWithProcessors) {
  const TempDirectory root;
  EXPECT_TRUE(allowed_memory_nodes(root.path().string()).empty());
  write_file(root.path() / "sys/devices/system/node/node0/cpulist", "\n");
  EXPECT_TRUE(allowed_memory_nodes(root.path().string()).empty()) << "memory alone";
  write_file(root.path() / "sys/devices/system/node/node0/cpulist", "0-1\n");
  EXPECT_EQ(allowed_memory_nodes(root.path().string()), std::vector<int>{0});
}

int policy_of_this_thread() {
  int mode = -1;
  return syscall(SYS_get_mempolicy, &mode, nullptr, 0UL, nullptr, 0UL) == 0 ? mode : -1;
}

TEST(InterleavedPages, LastAsLongAsTheScopeAndNeedTwoNodes) {
  const int before = policy_of_this_thread();
  if (before < 0) GTEST_SKIP() << "this kernel has no memory policies";
  {
    const InterleavedPages one({0});
    EXPECT_EQ(policy_of_this_thread(), before);
  }
  {
    const InterleavedPages twice({0, 0});  // looks like two nodes on a machine with one
    EXPECT_EQ(policy_of_this_thread(), MPOL_INTERLEAVE);
  }
  EXPECT_EQ(policy_of_this_thread(), before);
  const InterleavedPages missing({0, 1023});  // the kernel uses those nodes that exist, or refuses
  EXPECT_TRUE(policy_of_this_thread() == before || policy_of_this_thread() == MPOL_INTERLEAVE);
}

}  // namespace
}  // namespace rp
