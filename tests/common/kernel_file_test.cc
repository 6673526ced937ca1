#include "common/system/kernel_file.h"

#include <gtest/gtest.h>

namespace rp {
namespace {

TEST(KernelFile, IsReadToItsEnd) {
  EXPECT_EQ(kernel_file_text("/proc/self/comm").back(), '\n');
  EXPECT_NE(kernel_file_text("/proc/self/environ").find('\0'), std::string::npos);
}

TEST(KernelFile, ThatCannotBeReadHasNoText) {
  EXPECT_EQ(kernel_file_text("/proc/self/no-such-file"), "");
  EXPECT_EQ(kernel_file_text("/proc/self/mem"), "") << "it can be opened, and no byte of it read";
  EXPECT_EQ(kernel_file_text("/proc/self"), "") << "a directory";
}

}  // namespace
}  // namespace rp
