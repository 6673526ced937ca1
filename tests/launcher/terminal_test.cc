// Tests rp-launch in a terminal, with signals from the keyboard.

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>

#include "common/system/clock.h"
#include "common/system/fd.h"

namespace rp {
namespace {

// Reads from the terminal until `text` has arrived. Returns false after 20 s or at end of file.
bool read_until(int terminal, const std::string& text, std::string& seen) {
  const Deadline deadline = Deadline::after_seconds(20);
  while (seen.find(text) == std::string::npos) {
    pollfd ready{.fd = terminal, .events = POLLIN, .revents = 0};
    if (deadline.passed() || poll(&ready, 1, 1000) < 0) return false;
    std::array<char, 512> bytes;
    if (ready.revents == 0) continue;
    const ssize_t size = read(terminal, bytes.data(), bytes.size());
    if (size <= 0) return false;
    seen.append(bytes.data(), static_cast<std::size_t>(size));
  }
  return true;
}

TEST(Terminal, OneCtrlCIsExactlyOneInterrupt) {
  int fd = -1;
  const pid_t pid = forkpty(&fd, nullptr, nullptr, nullptr);
  if (pid == 0) {
    execl(RP_LAUNCH_PATH, "rp-launch", "-n", "2", RP_TOY_PATH, "count_signals", nullptr);
    _exit(127);
  }
  const UniqueFd terminal(fd);
  std::string seen;
  ASSERT_TRUE(read_until(terminal.get(), "ready", seen)) << seen;
  ASSERT_EQ(write(terminal.get(), "\x03", 1), 1);
  EXPECT_TRUE(read_until(terminal.get(), "signals 1", seen)) << seen;
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(WEXITSTATUS(status), 130);
}

TEST(Terminal, TheProgramMayReadFromIt) {
  int fd = -1;
  const pid_t pid = forkpty(&fd, nullptr, nullptr, nullptr);
  if (pid == 0) {
    execl(RP_LAUNCH_PATH, "rp-launch", "-n", "1", "/bin/sh", "-c", "read word; echo got-$word", nullptr);
    _exit(127);
  }
  const UniqueFd terminal(fd);
  std::string seen;
  ASSERT_EQ(write(terminal.get(), "it\n", 3), 3);
  EXPECT_TRUE(read_until(terminal.get(), "got-it", seen)) << seen;
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace rp
