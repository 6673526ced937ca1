// common/clock.h
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

// The same, and as little longer as can be: the last 0.2 ms, by which timers of virtual machines are late, are spun away.
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

 private:
  explicit Deadline(std::int64_t end_ns) : end_ns_(end_ns) {}
  std::int64_t end_ns_;
};

}  // namespace rp
