#include "launcher/process/process_stat.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

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

TEST(ProcessStat, KnowsWhichProcessTraces) {
  const pid_t child = test::start_process([] {
    for (;;) pause();
    return true;
  });
  EXPECT_EQ(tracer_of(child), 0);
  ASSERT_EQ(ptrace(PTRACE_SEIZE, child, nullptr, nullptr), 0);
  EXPECT_EQ(tracer_of(child), getpid());
  kill(child, SIGKILL);
  (void)test::wait_for_process(child);
  EXPECT_EQ(tracer_of(child), 0);
}

TEST(ProcessStat, CountsHowLongAThreadWaitsForAProcessor) {
  const std::int64_t before = run_delay_ns(getpid());
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency() + 1; ++i) {
    threads.emplace_back([&stop] {
      while (!stop) asm volatile("");
    });
  }
  const Deadline deadline = Deadline::after_seconds(20);
  while (run_delay_ns(getpid()) < before + kNsPerMs && !deadline.passed()) usleep(1000);
  EXPECT_GE(run_delay_ns(getpid()), before + kNsPerMs);
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(run_delay_ns(-1), 0);
}

TEST(ProcessStat, FindsAThreadByItsName) {
  std::promise<pid_t> started;
  std::promise<void> end;
  std::thread thread([&] {
    pthread_setname_np(pthread_self(), "rp-named");
    started.set_value(gettid());
    end.get_future().wait();
  });
  const pid_t id = started.get_future().get();
  EXPECT_EQ(thread_named(getpid(), "rp-named"), id);
  EXPECT_EQ(thread_named(getpid(), "rp-other"), getpid()) << "the main thread";
  end.set_value();
  thread.join();
}

}  // namespace
}  // namespace rp
