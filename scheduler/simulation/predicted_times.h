// scheduler/simulation/predicted_times.h
// Predicts the times of layers and copies from their costs and the profile of a GPU, without
// measurements.
#pragma once

#include <vector>

#include "scheduler/gpu_profile.h"
#include "scheduler/layer_cost.h"
#include "scheduler/workload.h"

namespace rp {

// Returns the time of one pass in ms: matrix products, attention and elementwise work one after the
// other, each at the share of the peak that the GPU reaches.
[[nodiscard]] double pass_ms(const PassCost& cost, const GpuProfile& gpu, Accumulate accumulate);

// Returns the time in ms in which a task expands the quantised weights of a layer: they are read and
// written once.
[[nodiscard]] double expansion_ms(const LayerCost& cost, const GpuProfile& gpu);

// Returns the times of one layer, without the expansion of its weights; backward without recompute.
[[nodiscard]] LayerWork predicted_work(const LayerCost& cost, const GpuProfile& gpu, Accumulate accumulate);

// Returns the time in ms of a copy that is alone on its link.
enum class CopyDirection { kHostToDevice, kDeviceToHost };
[[nodiscard]] double copy_ms(double bytes, CopyDirection direction, const GpuProfile& gpu);

// Returns a workload whose head is the last layer. A hop is the copy of the largest activation of a
// boundary to the host and from it. The expansion of weights is divided among the forwards of a
// task's microbatches. The caller sets the numbers of GPUs and microbatches. REQUIRES: at least two
// layers.
[[nodiscard]] Workload predicted_workload(const std::vector<LayerCost>& costs, const GpuProfile& gpu,
                                          Accumulate accumulate, int task_microbatches = 1);

}  // namespace rp
