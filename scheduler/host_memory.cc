#include "scheduler/host_memory.h"

#include <algorithm>
#include <set>

#include "common/run_depth.h"

namespace rp {
namespace {

constexpr std::uint64_t kFp32 = 4;

// Returns the layers whose input is kept in the host store: the first layers of stages, and with
// recompute by layer all layers that have a backward stage. The input of layer 0 is the round's
// inputs.
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
  std::uint64_t num_trained = 0;  // trained weight groups of the layers before this one
  std::uint64_t longest_piece = 0;
  for (const LayerCost& cost : costs) {
    const std::uint64_t trained_bytes = settings.element_bytes * cost.trained_elements + cost.correction_bytes;
    memory.weights += cost.frozen_bytes + trained_bytes * (settings.asynchronous ? 2 : 1);
    memory.gradients += cost.gradient_bytes;
    const std::uint64_t masters = settings.element_bytes < kFp32 ? 1 : 0;
    const auto owned = [&](std::uint64_t elements) {
      return owned_elements(elements, num_trained, settings.place).size();
    };
    const std::uint64_t corrections = cost.correction_bytes / kFp32;
    const std::uint64_t owned_sums = owned(cost.gradient_elements - corrections);
    memory.optimizer_state +=
        kFp32 * owned(cost.trained_elements) * (masters + static_cast<std::uint64_t>(settings.num_moments));
    num_trained += cost.gradient_elements > corrections ? 1 : 0;
    const std::uint64_t owned_corrections = owned(corrections);
    num_trained += corrections > 0 ? 1 : 0;
    if (settings.rounds_per_step > 1) memory.optimizer_state += kFp32 * (owned_sums + owned_corrections);
    longest_piece = std::max({longest_piece, longest_piece_bytes(owned_sums, settings.element_bytes),
                              longest_piece_bytes(owned_corrections, kFp32)});
  }
  memory.received_gradients = receive_buffers_bytes(longest_piece, settings.place.num_nodes);
  std::uint64_t of_a_microbatch = 0, largest_gradient = 0;
  for (const int layer : boundaries(plan, settings.recompute)) {
    if (layer >= static_cast<int>(costs.size())) continue;
    const std::uint64_t bytes = costs[layer].input_bytes;
    of_a_microbatch += bytes;
    if (layer > 0) largest_gradient = std::max(largest_gradient, bytes);
  }
  // Two gradients of boundaries exist at a time: the one that a stage reads and the one that it
  // produces.
  if (!plan.backward.empty()) of_a_microbatch += 2 * largest_gradient;
  memory.activations = kRoundsInFlight * static_cast<std::uint64_t>(settings.num_microbatches) * of_a_microbatch;
  return memory;
}

}  // namespace rp
