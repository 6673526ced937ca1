#include "common/system/clock.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rp {
namespace {

TEST(Patience, IsOverAfterItsTime) {
  Patience patience(50 * kNsPerMs);
  const std::int64_t start = now_ns();
  while (patience.left_ns() > 0) sleep_until_ns(now_ns() + kNsPerMs);
  EXPECT_GE(now_ns() - start, 50 * kNsPerMs);
}

TEST(Patience, DoesNotCountTheTimeInWhichTheProcessIsStopped) {
  const pid_t child = fork();
  if (child == 0) {
    Patience patience(2 * kNsPerSecond);
    const std::int64_t start = now_ns();
    while (patience.left_ns() > 0) sleep_until_ns(now_ns() + 10 * kNsPerMs);
    // The process is stopped for 3 s, of which at most 1 s counts.
    _exit(now_ns() - start >= 4 * kNsPerSecond ? 0 : 1);
  }
  sleep_until_ns(now_ns() + 200 * kNsPerMs);
  kill(child, SIGSTOP);
  sleep_until_ns(now_ns() + 3 * kNsPerSecond + 100 * kNsPerMs);
  kill(child, SIGCONT);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace rp
