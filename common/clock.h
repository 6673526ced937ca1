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
