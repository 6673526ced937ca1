// common/system/clock.h
// Reads the monotonic clock that all processes of a machine share, sleeps until a time on it, and
// defines deadlines.
#pragma once

#include <time.h>

#include <cstdint>

namespace rp {

// Returns nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
inline std::int64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * std::int64_t{1'000'000'000} + time.tv_nsec;
}

// Sleeps until a time of the same clock. Never returns earlier.
void sleep_until_ns(std::int64_t end_ns);

// Like sleep_until_ns(), but returns as soon after that time as possible: it spins for the last
// 0.2 ms, because timers of virtual machines are late by up to this much.
void sleep_exactly_until_ns(std::int64_t end_ns);

// Makes the kernel wake the calling thread on time. By default the kernel delays wake-ups by up to
// 50 us so that it can combine several of them.
void wake_this_thread_on_time();

inline constexpr std::int64_t kNsPerMs = 1'000'000;
inline constexpr std::int64_t kNsPerSecond = 1'000'000'000;

// A point in time after which a wait gives up.
class Deadline {
 public:
  static Deadline after_ns(std::int64_t ns) { return Deadline(now_ns() + ns); }
  static Deadline after_seconds(double seconds) { return after_ns(static_cast<std::int64_t>(seconds * 1e9)); }
  static Deadline never() { return Deadline(INT64_MAX); }

  // Returns 0 or less once the deadline has passed.
  [[nodiscard]] std::int64_t left_ns() const { return end_ns_ == INT64_MAX ? INT64_MAX : end_ns_ - now_ns(); }
  [[nodiscard]] bool passed() const { return left_ns() <= 0; }
  [[nodiscard]] Deadline later_by_ns(std::int64_t ns) const {
    return end_ns_ == INT64_MAX ? *this : Deadline(end_ns_ + ns);
  }

 private:
  explicit Deadline(std::int64_t end_ns) : end_ns_(end_ns) {}
  std::int64_t end_ns_;
};

// The time that is left for a wait. Only time in which this process runs counts, and at most one
// second of each stop (by Ctrl-Z, by a debugger, or because the machine was suspended). left_ns()
// must be called at least ten times per second.
class Patience {
 public:
  explicit Patience(std::int64_t ns) : left_ns_(ns), asked_ns_(now_ns()) {}

  // Returns 0 or less once the time is over.
  [[nodiscard]] std::int64_t left_ns() {
    constexpr std::int64_t kLongestGapNs = kNsPerSecond;  // a longer gap is a stop, not a late wake-up
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
