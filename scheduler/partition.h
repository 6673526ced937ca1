// scheduler/partition.h
// A first automatic plan: balanced by layer times. (The simulator-driven planner comes beside it.)
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/plan.h"
#include "scheduler/plan_cost.h"

namespace rp {

// What one layer takes for one microbatch, in any unit, and in a stage buffer.
struct PartitionLayer {
  double forward = 0;
  double recompute = 0;  // 0 where no gradient goes, as `backward`
  double backward = 0;   // without recompute
  std::uint64_t bytes = 0;
};

// A model that is to be cut.
struct PlanRequest {
  PlanKind kind = PlanKind::kFused;
  std::vector<PartitionLayer> layers;
  std::uint64_t max_stage_bytes = UINT64_MAX;
  StageLimits limits{};  // of this kind's plans; empty: none
};

// Plans for models that share the workers: for every bound t on a stage's time among the contiguous sums of layer
// times, the stages of all models are packed greedily under t, and the models are cut at the smallest max(stages,
// min_stages) * t; the cuts of each model's number of stages are then spread evenly. A backward stage costs its
// recompute too, the fused stage does not. No stage holds more than its model's max_stage_bytes, or is longer than its
// limits, unless it has one layer. `threshold`: t is at most this many times the longest layer; 0: no bound. REQUIRES:
// at least one layer in each model, min_stages >= 1.
[[nodiscard]] std::vector<Plan> balanced_plans(const std::vector<PlanRequest>& models, int min_stages,
                                               double threshold);

}  // namespace rp
