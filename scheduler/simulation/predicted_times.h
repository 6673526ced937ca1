// scheduler/simulation/predicted_times.h
// Times of layers and copies that nobody measured: from what they cost and what a GPU can do.
#pragma once

#include <vector>

#include "scheduler/gpu_profile.h"
#include "scheduler/layer_cost.h"
#include "scheduler/workload.h"

namespace rp {

// Operations over the peak that is reached, matrix products, attention and elementwise work one after the other.
[[nodiscard]] double pass_ms(const PassCost& cost, const GpuProfile& gpu, Accumulate accumulate);

// Of one layer; backward without recompute.
[[nodiscard]] LayerWork predicted_work(const LayerCost& cost, const GpuProfile& gpu, Accumulate accumulate);

// A copy alone on its link.
enum class CopyDirection { kHostToDevice, kDeviceToHost };
[[nodiscard]] double copy_ms(double bytes, CopyDirection direction, const GpuProfile& gpu);

// All layers but the last are the workload's, the last is its head; a hop is the boundary's activation to the host and
// from it. The GPUs and microbatches are the caller's to set. REQUIRES: two layers or more.
[[nodiscard]] Workload predicted_workload(const std::vector<LayerCost>& costs, const GpuProfile& gpu,
                                          Accumulate accumulate);

}  // namespace rp
