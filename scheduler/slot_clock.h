// scheduler/slot_clock.h
// When slots end that follow each other on workers in turn: a microbatch of a slot waits for the one before it on its worker,
// and for the same microbatch of the slot before. Virtual time, in any unit.
#pragma once

#include <algorithm>
#include <vector>

namespace rp {

// What a slot takes for one microbatch.
struct SlotTime {
  double lead = 0;  // that needs no output of the slot before, as a recompute
  double work = 0;  // after that
};

class SlotClock {
 public:
  // `hop`: from the end of a microbatch to its beginning in the next slot, at the earliest.
  SlotClock(int num_workers, int num_microbatches, double hop)
      : hop_(hop), free_(static_cast<std::size_t>(num_workers)), arrivals_(static_cast<std::size_t>(num_microbatches)) {}

  // Back to 0 and the first worker.
  void restart() {
    std::fill(free_.begin(), free_.end(), 0.0);
    next_worker_ = 0;
  }
  // The next slot has its inputs: it is the first of a round.
  void begin_round() { std::fill(arrivals_.begin(), arrivals_.end(), 0.0); }

  // Runs the next slot, not before `ready`. Returns its end.
  double run(const SlotTime& time, double ready) {
    double now = std::max(free_[next_worker_], ready);
    for (double& arrival : arrivals_) {
      now = std::max(now + time.lead, arrival) + time.work;
      arrival = now + hop_;
    }
    free_[next_worker_] = now;
    next_worker_ = next_worker_ + 1 == free_.size() ? 0 : next_worker_ + 1;
    return now;
  }

  // When the last slot's microbatches are at the next one.
  [[nodiscard]] const std::vector<double>& arrivals() const { return arrivals_; }
  // Of the worker that ends last.
  [[nodiscard]] double end() const { return *std::max_element(free_.begin(), free_.end()); }

 private:
  double hop_;
  std::size_t next_worker_ = 0;
  std::vector<double> free_;      // by worker
  std::vector<double> arrivals_;  // by microbatch
};

}  // namespace rp
