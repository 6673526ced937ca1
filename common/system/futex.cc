#include "common/system/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace rp {

void futex_wait(const std::atomic<std::uint32_t>* word, std::uint32_t expected, std::int64_t timeout_ns) {
  if (timeout_ns <= 0) return;
  const timespec timeout{.tv_sec = timeout_ns / 1'000'000'000, .tv_nsec = timeout_ns % 1'000'000'000};
  // The outcome (woken, changed, timed out, interrupted) does not matter, because the caller checks
  // the word again.
  syscall(SYS_futex, word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

void futex_wait_until(const std::atomic<std::uint32_t>* word, std::uint32_t expected, std::int64_t end_ns) {
  const timespec end{.tv_sec = end_ns / 1'000'000'000, .tv_nsec = end_ns % 1'000'000'000};
  // FUTEX_WAIT_BITSET expects a time of CLOCK_MONOTONIC rather than a duration.
  syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, end_ns == INT64_MAX ? nullptr : &end, nullptr,
          FUTEX_BITSET_MATCH_ANY);
}

void futex_wake_all(const std::atomic<std::uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace rp
