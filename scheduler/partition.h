// scheduler/partition.h
// A first automatic plan: balanced by layer times. (The simulator-driven planner comes beside it.)
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/plan.h"

namespace rp {

// Time of one layer for one microbatch, in any unit, and what it takes in a stage buffer.
struct LayerCost {
  double forward = 0;
  double backward = 0;  // without recompute
  std::uint64_t bytes = 0;
};

// A plan for `num_workers` workers: for every bound t on a stage's time among the contiguous sums of layer times, the
// stages are packed greedily under t and the model is cut at the smallest max(stages, workers) * t; the cuts of that
// number of stages are then spread evenly. A backward stage costs its recompute too, the fused stage does not.
// No stage holds more than `max_stage_bytes` unless one layer alone does.
// REQUIRES: at least one layer, at least one worker.
[[nodiscard]] Plan balanced_plan(const std::vector<LayerCost>& layers, int num_workers, std::uint64_t max_stage_bytes);

// Layer times over rounds: the first record is dropped, the second taken, later ones smoothed.
class LayerTimes {
 public:
  explicit LayerTimes(int num_layers) : times_(static_cast<std::size_t>(num_layers)) {}

  // Adds the times of one round, in nanoseconds for all its microbatches.
  void add(const std::vector<std::int64_t>& forward_ns, const std::vector<std::int64_t>& backward_ns);

  [[nodiscard]] int num_records() const { return num_records_; }
  // Time of a layer in nanoseconds.
  [[nodiscard]] double forward(int layer) const { return times_[static_cast<std::size_t>(layer)].forward; }
  [[nodiscard]] double backward(int layer) const { return times_[static_cast<std::size_t>(layer)].backward; }

 private:
  struct Times {
    double forward = 0;
    double backward = 0;
  };
  std::vector<Times> times_;  // ns
  int num_records_ = 0;
};

}  // namespace rp
