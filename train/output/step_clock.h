// train/output/step_clock.h
// Measures the time of steps, and estimates the time of the remaining ones.
#pragma once

#include <cstdint>
#include <deque>

namespace rp {

class StepClock {
 public:
  explicit StepClock(std::int64_t start_ns) : last_ns_(start_ns) {}

  // Records that a step was done at this time. Returns the seconds since the previous step.
  double on_step(std::int64_t now_ns);

  // Excludes the time from the previous step until `now_ns` from the next step.
  void leave_out_until(std::int64_t now_ns) { last_ns_ = now_ns; }

  // Estimates the time of `num_steps` steps by the mean of the latest ones; 0 before the first
  // step. The first step of a run, in which memory is touched for the first time, counts only while
  // it is the only one.
  [[nodiscard]] double seconds_for(std::int64_t num_steps) const;

 private:
  std::int64_t last_ns_;
  std::deque<double> recent_;
  bool is_started_ = false;
  bool has_first_ = false;  // recent_ holds the first step of the run
};

}  // namespace rp
