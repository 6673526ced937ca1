#include "coordinator/run_plans/device_budget.h"

#include <algorithm>

#include "roundpipe/error.h"

namespace rp {

void DeviceBudget::note(const DeviceMemoryPeaks& peaks) {
  if (peaks.limit_bytes == 0) return;
  limit_bytes_ = is_known() ? std::min(limit_bytes_, peaks.limit_bytes) : peaks.limit_bytes;
  resident_bytes_ = std::max(resident_bytes_, peaks.resident_bytes);
}

double DeviceBudget::capacity_bytes() const {
  return std::max(0.0, (1 - kLostToPieces) * static_cast<double>(limit_bytes_) - static_cast<double>(resident_bytes_));
}

StageLimits DeviceBudget::stages_of_one_layer(int num_layers, PlanKind kind) {
  StageLimits limits;
  for (int layer = 0; layer < num_layers; ++layer) limits.forward.push_back(layer + 1);
  limits.backward = limits.forward;
  limits.least_fused_start = num_layers - (kind == PlanKind::kFused ? 1 : 0);
  return limits;
}

StageLimits DeviceBudget::take(const std::vector<LayerCost>& costs, RecomputeGrain recompute, PlanKind kind,
                               int max_fused_layers) {
  StageLimits limits;
  try {
    limits = stage_limits(costs, capacity_bytes(), recompute, max_fused_layers, kind, taken_);
  } catch (const Error&) {
    limits = stages_of_one_layer(static_cast<int>(costs.size()), kind);
  }
  taken_ = largest(taken_, memory_within(costs, limits, recompute, kind));
  return limits;
}

bool DeviceBudget::has_room_for(const std::vector<LayerCost>& costs, const Plan& plan, RecomputeGrain recompute) const {
  return static_cast<double>(gpu_memory(costs, plan, recompute).total()) <= capacity_bytes();
}

}  // namespace rp
