// scheduler/slot_clock.h
// Computes when consecutive slots end that run on the workers in turn. A microbatch of a slot waits
// for the microbatch before it on its worker, and for the same microbatch of the slot before. Times
// are virtual, in any unit.
//
// The microbatches of a slot all take the same time, so the times at which they arrive at the next
// slot are convex: no gap is shorter than the one before (by induction over the slots). So a
// microbatch either waits for its own arrival, or the worker has not waited since the first
// microbatch. No value is carried from microbatch to microbatch, and the loop can be vectorised.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace rp {

// The time that a slot needs for one microbatch.
struct SlotTime {
  double lead = 0;  // at the beginning, without output of the slot before, such as a recompute
  double work = 0;  // after the lead
};

class SlotClock {
 public:
  // `hop`: the minimum time from the end of a microbatch to its beginning in the next slot.
  // `slowness`: by worker, the factor by which the times of a slot are multiplied; empty: 1 for
  // all.
  SlotClock(int num_workers, int num_microbatches, double hop, std::vector<double> slowness = {})
      : hop_(hop), slowness_(std::move(slowness)), free_(num_workers), ends_(num_microbatches) {
    slowness_.resize(free_.size(), 1.0);
  }

  // Goes back to time 0 and the first worker.
  void restart() {
    std::fill(free_.begin(), free_.end(), 0.0);
    next_worker_ = 0;
  }
  // Marks the next slot as the first of a round: its inputs are already there.
  void begin_round() { std::fill(ends_.begin(), ends_.end(), -hop_); }

  // Runs the next slot, which begins at `ready` at the earliest. Returns its end.
  double run(const SlotTime& time, double ready) {
    const double slowness = slowness_[next_worker_];
    const double work = time.work * slowness, period = time.lead * slowness + work;
    const double from_input = hop_ + work;
    const double first = std::max(std::max(free_[next_worker_], ready) + period, ends_.front() + from_input);
    double* const ends = ends_.data();
    const int count = static_cast<int>(ends_.size());
    for (int i = 0; i < count; ++i) {
      const double own_worker = first + i * period, own_arrival = ends[i] + from_input;
      ends[i] = own_worker > own_arrival ? own_worker : own_arrival;  // std::max() is not vectorised
    }
    free_[next_worker_] = ends_.back();
    next_worker_ = next_worker_ + 1 == free_.size() ? 0 : next_worker_ + 1;
    return ends_.back();
  }

  // The ends of the microbatches of the last slot.
  [[nodiscard]] const std::vector<double>& ends() const { return ends_; }
  // The end of the worker that ends last.
  [[nodiscard]] double end() const { return *std::max_element(free_.begin(), free_.end()); }

 private:
  double hop_;
  std::size_t next_worker_ = 0;
  std::vector<double> slowness_;  // by worker
  std::vector<double> free_;      // by worker
  std::vector<double> ends_;      // by microbatch
};

}  // namespace rp
