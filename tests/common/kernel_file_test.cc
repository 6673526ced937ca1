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

TEST(KernelFile, HasTheWordsOfACommandLine) {
  const auto words = [](std::vector<std::string> given) {
    std::vector<char*> arguments;
    for (std::string& word : given) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      execvp(arguments[0], arguments.data());
      _exit(127);
    }
    std::vector<std::string> seen;
    for (int i = 0; i < 1000 && seen != given; ++i) {  // until the child has executed the program
      usleep(10'000);
      seen = command_line_of(child);
    }
    kill(child, SIGKILL);
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT_EQ(command_line_of(child), std::vector<std::string>());
    return seen;
  };
  const std::vector<std::string> script = {"sh", "-c", "kill -STOP $$", "", "two words", ""};
  EXPECT_EQ(words(script), script);
}

}  // namespace
}  // namespace rp
