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
#include "launcher/process/processor_wait.h"
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

TEST(ProcessStat, CountsHowLongThreadsRunAndWaitForAProcessor) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency() + 1; ++i) {
    threads.emplace_back([&stop] {
      while (!stop) asm volatile("");
    });
  }
  std::size_t num_at_work = 0;
  std::int64_t delay_ns = 0;
  const Deadline deadline = Deadline::after_seconds(20);
  while ((num_at_work < threads.size() || delay_ns < kNsPerMs) && !deadline.passed()) {
    num_at_work = 0;
    delay_ns = 0;
    for (const ThreadTimes& times : thread_times(getpid())) {
      num_at_work += times.thread != getpid() && times.state == 'R' && times.run_ns > 0;
      delay_ns += times.delay_ns;
    }
    usleep(1000);
  }
  EXPECT_EQ(num_at_work, threads.size());
  EXPECT_GE(delay_ns, kNsPerMs);
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(thread_times(-1).empty());
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

constexpr std::int64_t kSliceNs = 500;

// Two threads of a process. The one that waits is not the one that has waited most since its start.
class ProcessorWaitTest : public testing::Test {
 protected:
  ProcessorWaitTest() { EXPECT_EQ(look(), 0) << "nothing is known of the time before"; }
  std::int64_t look() { return wait_.waited_ns(threads_, kSliceNs); }

  std::vector<ThreadTimes> threads_{{.thread = 7, .state = 'S', .delay_ns = 100'000}, {.thread = 8, .state = 'R'}};
  ThreadTimes& thread_ = threads_[1];  // until a thread is added
  ProcessorWait wait_;
};

TEST_F(ProcessorWaitTest, IsThatOfTheThreadThatWaitedLongest) {
  thread_.run_ns += 400;
  thread_.delay_ns += 100;
  threads_[0].delay_ns += 30;
  EXPECT_EQ(look(), 100);
  thread_.run_ns += 500;
  EXPECT_EQ(look(), 0) << "it has run";
  thread_.state = 'S';
  EXPECT_EQ(look(), 0) << "it has slept";
}

TEST_F(ProcessorWaitTest, ContainsAWaitThatHasNotEndedAndCountsItOnce) {
  for (int i = 0; i < 10; ++i) EXPECT_EQ(look(), kSliceNs);
  thread_.run_ns += 10;
  thread_.delay_ns += 10 * kSliceNs + 70;  // the kernel counts a wait when it ends
  EXPECT_EQ(look(), 70);
  thread_.run_ns += 10;
  thread_.delay_ns += 40;
  EXPECT_EQ(look(), 40);
}

TEST_F(ProcessorWaitTest, IsNeverLongerThanTheTime) {
  thread_.run_ns += 10;
  thread_.delay_ns += 3 * kSliceNs;
  EXPECT_EQ(look(), kSliceNs);
}

TEST_F(ProcessorWaitTest, ContainsWaitsForADisk) {
  thread_.state = 'D';
  thread_.run_ns += 10;
  EXPECT_EQ(look(), kSliceNs);
  thread_.state = 'S';
  EXPECT_EQ(look(), 0);
}

TEST_F(ProcessorWaitTest, DoesNotContainThePastOfANewThread) {
  thread_.state = 'S';
  threads_.push_back({.thread = 9, .state = 'R', .delay_ns = 400});
  EXPECT_EQ(look(), 0);
  threads_[2].delay_ns += 50;
  EXPECT_EQ(look(), 50);
}

}  // namespace
}  // namespace rp
