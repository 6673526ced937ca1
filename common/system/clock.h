// common/system/clock.h
// One monotonic clock for every process of a machine, and deadlines on it.
#pragma once

#include <time.h>

#include <cstdint>

namespace rp {

// Nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
inline std::int64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * std::int64_t{1'000'000'000} + time.tv_nsec;
}

// Sleeps until that time of the same clock, not a moment less.
void sleep_until_ns(std::int64_t end_ns);

// The same, and as little longer as can be: the last 0.2 ms, by which timers of virtual machines are late, are spun
// away.
void sleep_exactly_until_ns(std::int64_t end_ns);

// The kernel may not wake the calling thread later than it must, to save wake-ups (by default up to 50 us).
void wake_this_thread_on_time();

inline constexpr std::int64_t kNsPerMs = 1'000'000;
inline constexpr std::int64_t kNsPerSecond = 1'000'000'000;

// A point of time after which a wait gives up.
class Deadline {
 public:
  static Deadline after_ns(std::int64_t ns) { return Deadline(now_ns() + ns); }
  static Deadline after_seconds(double seconds) { return after_ns(static_cast<std::int64_t>(seconds * 1e9)); }
  static Deadline never() { return Deadline(INT64_MAX); }

  // At most 0 once it has passed.
  [[nodiscard]] std::int64_t left_ns() const { return end_ns_ == INT64_MAX ? INT64_MAX : end_ns_ - now_ns(); }
  [[nodiscard]] bool passed() const { return left_ns() <= 0; }
  [[nodiscard]] Deadline later_by_ns(std::int64_t ns) const {
    return end_ns_ == INT64_MAX ? *this : Deadline(end_ns_ + ns);
  }

 private:
  explicit Deadline(std::int64_t end_ns) : end_ns_(end_ns) {}
  std::int64_t end_ns_;
};

// What is left of the time that a wait may take, of which only time counts in which this process runs: one that was
// stopped (Ctrl-Z, a debugger, a suspended machine) goes on waiting as if nothing had been. To be asked at least ten
// times a second.
class Patience {
 public:
  explicit Patience(std::int64_t ns) : left_ns_(ns), asked_ns_(now_ns()) {}

  // At most 0 once it is over.
  [[nodiscard]] std::int64_t left_ns() {
    constexpr std::int64_t kLongestGapNs = kNsPerSecond;  // a longer one is a stop, not a late wake-up
    const std::int64_t now = now_ns();
    const std::int64_t gap = now - asked_ns_;
    left_ns_ -= gap < kLongestGapNs ? gap : kLongestGapNs;
    asked_ns_ = now;
    return left_ns_;
  }

 private:
  std::int64_t left_ns_;
  std::int64_t asked_ns_;
};

}  // namespace rp
