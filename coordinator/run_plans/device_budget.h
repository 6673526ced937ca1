// coordinator/run_plans/device_budget.h
// Tracks the memory of the smallest worker's device, and how much of it the plans of a run need.
// The plans share the workers' buffers, which are kept between tasks, so all plans together must
// fit.
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
  // The fraction of the limit that is reserved for gaps between buffers that are too short for any
  // buffer.
  static constexpr double kLostToPieces = 1.0 / 16;
  // Notes the memory that a worker reported.
  void note(const DeviceMemoryPeaks& peaks);
  // Returns true if a worker has reported a limit.
  [[nodiscard]] bool is_known() const { return limit_bytes_ > 0; }
  [[nodiscard]] double capacity_bytes() const;

  // Forgets all plans, before they are cut again.
  void clear() { taken_ = {}; }
  // Adds the plan of another pipeline and kind, and returns how long its stages may be next to the
  // plans so far; its fused stage may have `max_fused_layers` layers in addition to the head. If
  // there is no memory for longer stages, or not even for stages of one layer, returns stages of
  // one layer: they have run by then, and no plan needs less.
  [[nodiscard]] StageLimits take(const std::vector<LayerCost>& costs, RecomputeGrain recompute, PlanKind kind,
                                 int max_fused_layers);
  // Adds a plan that is given.
  void take(const std::vector<LayerCost>& costs, const Plan& plan, RecomputeGrain recompute) {
    taken_ = largest(taken_, gpu_memory(costs, plan, recompute));
  }
  // Returns true if this plan fits by itself.
  [[nodiscard]] bool has_room_for(const std::vector<LayerCost>& costs, const Plan& plan,
                                  RecomputeGrain recompute) const;

  // Returns limits for stages of one layer each, which need the least memory.
  [[nodiscard]] static StageLimits stages_of_one_layer(int num_layers, PlanKind kind);

 private:
  std::uint64_t limit_bytes_ = 0;     // of the smallest worker
  std::uint64_t resident_bytes_ = 0;  // the maximum that a worker keeps between tasks
  GpuMemory taken_;
};

}  // namespace rp
