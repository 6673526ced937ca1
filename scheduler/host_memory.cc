#include "scheduler/host_memory.h"

#include <algorithm>
#include <set>

#include "common/run_depth.h"

namespace rp {
namespace {

constexpr std::uint64_t kFp32 = 4;

// Layers whose input lies in the host store: the first ones of stages; where each layer is recomputed by itself, all of
// those that have a backward stage. Layer 0's are the round's inputs.
std::set<int> boundaries(const Plan& plan, RecomputeGrain recompute) {
  std::set<int> layers = {plan.fused_start};
  for (const LayerRange& stage : plan.forward) layers.insert(stage.first);
  for (const LayerRange& stage : plan.backward) {
    for (int layer = stage.first; layer < (recompute == RecomputeGrain::kLayer ? stage.end : stage.first + 1); ++layer)
      layers.insert(layer);
  }
  return layers;
}

}  // namespace

HostMemory host_memory(const std::vector<LayerCost>& costs, const Plan& plan, const HostSettings& settings) {
  HostMemory memory;
  for (const LayerCost& cost : costs) {
    memory.weights +=
        settings.element_bytes * (cost.frozen_elements + cost.trained_elements * (settings.asynchronous ? 2 : 1));
    memory.gradients += cost.gradient_bytes;
    const std::uint64_t masters = settings.element_bytes < kFp32 ? 1 : 0;
    memory.optimizer_state +=
        kFp32 * cost.trained_elements * (masters + static_cast<std::uint64_t>(settings.num_moments));
    if (settings.rounds_per_step > 1) memory.optimizer_state += kFp32 * cost.gradient_elements;
  }
  std::uint64_t of_a_microbatch = 0, largest_gradient = 0;
  for (const int layer : boundaries(plan, settings.recompute)) {
    if (layer >= static_cast<int>(costs.size())) continue;
    const std::uint64_t bytes = costs[static_cast<std::size_t>(layer)].input_bytes;
    of_a_microbatch += bytes;
    if (layer > 0) largest_gradient = std::max(largest_gradient, bytes);
  }
  // Gradients of boundaries: the one that a stage reads and the one that it makes.
  if (!plan.backward.empty()) of_a_microbatch += 2 * largest_gradient;
  memory.activations = kRoundsInFlight * static_cast<std::uint64_t>(settings.num_microbatches) * of_a_microbatch;
  return memory;
}

}  // namespace rp
