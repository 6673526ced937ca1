#include "common/system/clock.h"

#include <sched.h>
#include <sys/prctl.h>

#include <cerrno>

namespace rp {

namespace {

constexpr std::int64_t kTimerDelayNs = 200'000;

}  // namespace

void sleep_until_ns(std::int64_t end_ns) {
  const timespec end{.tv_sec = end_ns / kNsPerSecond, .tv_nsec = end_ns % kNsPerSecond};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, nullptr) == EINTR) {}
}

void sleep_exactly_until_ns(std::int64_t end_ns) {
  if (end_ns - now_ns() > kTimerDelayNs) sleep_until_ns(end_ns - kTimerDelayNs);
  while (now_ns() < end_ns) sched_yield();
}

void wake_this_thread_on_time() { prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL); }

}  // namespace rp
