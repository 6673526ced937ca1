// train/output/step_clock.h
// How long steps take, and how long the rest will take.
#pragma once

#include <cstdint>
#include <deque>

namespace rp {

class StepClock {
 public:
  explicit StepClock(std::int64_t start_ns) : last_ns_(start_ns) {}

  // A step was done at this time. Returns the seconds since the one before.
  double on_step(std::int64_t now_ns);

  // What was done until this time belongs to no step.
  void leave_out_until(std::int64_t now_ns) { last_ns_ = now_ns; }

  // By the mean of the last steps; the first step of a run, in which memory is touched for the first time, counts only
  // while it is the only one.
  [[nodiscard]] double seconds_for(std::int64_t num_steps) const;

 private:
  std::int64_t last_ns_;
  std::deque<double> recent_;
  bool is_started_ = false;
  bool has_first_ = false;  // recent_ holds the first step of the run
};

}  // namespace rp
