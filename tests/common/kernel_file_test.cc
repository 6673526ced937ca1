#include "common/system/kernel_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

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

TEST(CommandLine, HasAllWordsAlsoEmptyOnesUntilTheProcessEnds) {
  const std::vector<std::string> words = {"sh", "-c", "kill -STOP $$", "", "two words", ""};
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    execlp("sh", "sh", "-c", "kill -STOP $$", "", "two words", "", nullptr);
    _exit(127);
  }
  ASSERT_EQ(waitpid(child, nullptr, WUNTRACED), child);
  EXPECT_EQ(command_line_of(child), words);
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(command_line_of(child), std::vector<std::string>());
}

}  // namespace
}  // namespace rp
