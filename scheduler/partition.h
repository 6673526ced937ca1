// scheduler/partition.h
// Cuts models that share the workers into stages of about the same length, by the times of their
// layers. (planner.h searches for the plan with the shortest simulated step, for one model.)
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/plan.h"
#include "scheduler/plan_cost.h"

namespace rp {

// The time of one layer for one microbatch, in any unit, and its bytes in a stage buffer.
struct PartitionLayer {
  double forward = 0;
  double recompute = 0;  // 0 if no gradient is needed; then `backward` is 0 too
  double backward = 0;   // without recompute
  std::uint64_t bytes = 0;
};

// A model to be cut.
struct PlanRequest {
  PlanKind kind = PlanKind::kFused;
  std::vector<PartitionLayer> layers;
  std::uint64_t max_stage_bytes = UINT64_MAX;
  StageLimits limits{};  // of plans of this kind; empty: none
};

// Returns plans for models that share the workers. Every contiguous sum of layer times is tried as
// a bound t on the time of a stage: the stages of all models are packed greedily under t. The
// models are cut at the t with the smallest max(stages, min_stages) * t. Then the cuts of each
// model are spread evenly, with its number of stages unchanged. The cost of a backward stage
// includes its recompute; the fused stage has none. No stage has more than its model's
// max_stage_bytes or exceeds its limits, unless it has one layer only. `threshold`: t is at most
// this many times the longest layer; 0: no bound. REQUIRES: at least one layer in each model,
// min_stages >= 1.
[[nodiscard]] std::vector<Plan> balanced_plans(const std::vector<PlanRequest>& models, int min_stages,
                                               double threshold);

}  // namespace rp
