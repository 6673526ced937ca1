// coordinator/run_plans/device_budget.h
// The memory of the smallest worker's device, and what the plans of a run have of it: they share the workers' buffers,
// which are kept, so all of them together must fit.
//
// Owned by StagePlans.
#pragma once

#include <cstdint>
#include <vector>

#include "hoststore/memory_use.h"
#include "scheduler/gpu_memory.h"

namespace rp {

class DeviceBudget {
 public:
  // Of the limit, for what lies between buffers and is too short for any of them.
  static constexpr double kLostToPieces = 1.0 / 16;
  // What a worker told.
  void note(const DeviceMemoryPeaks& peaks);
  // Whether a worker told of a limit.
  [[nodiscard]] bool is_known() const { return limit_bytes_ > 0; }
  [[nodiscard]] double capacity_bytes() const;

  // All plans are made anew.
  void clear() { taken_ = {}; }
  // How long the stages of one more pipeline and kind may be beside those so far, the fused one with so many layers
  // beside the head. Stages of one layer where there is no room for longer ones, or even for these: they have run by
  // then, and nothing needs less.
  [[nodiscard]] StageLimits take(const std::vector<LayerCost>& costs, RecomputeGrain recompute, PlanKind kind,
                                 int max_fused_layers);
  // A plan that is given.
  void take(const std::vector<LayerCost>& costs, const Plan& plan, RecomputeGrain recompute) {
    taken_ = largest(taken_, gpu_memory(costs, plan, recompute));
  }
  // Whether this plan fits by itself.
  [[nodiscard]] bool has_room_for(const std::vector<LayerCost>& costs, const Plan& plan,
                                  RecomputeGrain recompute) const;

  // Of `num_layers` layers: what is known to need the least.
  [[nodiscard]] static StageLimits stages_of_one_layer(int num_layers, PlanKind kind);

 private:
  std::uint64_t limit_bytes_ = 0;     // the smallest worker's
  std::uint64_t resident_bytes_ = 0;  // the most that one keeps between tasks
  GpuMemory taken_;
};

}  // namespace rp
