#include "launcher/process/process_stat.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "common/system/clock.h"
#include "tests/hoststore/processes.h"

namespace rp {
namespace {

TEST(ProcessStat, TicksGoOnWhileAProcessRunsAndNoLonger) {
  const pid_t child = test::start_process([] {
    for (;;) asm volatile("");
    return true;
  });
  const Deadline deadline = Deadline::after_seconds(20);
  while (process_stat(child).cpu_ticks < 3 && !deadline.passed()) usleep(1000);
  EXPECT_GE(process_stat(child).cpu_ticks, 3U);
  EXPECT_EQ(process_stat(child).state, 'R');
  kill(child, SIGSTOP);
  waitpid(child, nullptr, WUNTRACED);
  EXPECT_EQ(process_stat(child).state, 'T');
  const std::uint64_t ticks = process_stat(child).cpu_ticks;
  usleep(100'000);  // long enough that a wrong count would show
  EXPECT_EQ(process_stat(child).cpu_ticks, ticks);
  kill(child, SIGKILL);
  (void)test::wait_for_process(child);
  EXPECT_EQ(process_stat(child).state, '?');
}

}  // namespace
}  // namespace rp
