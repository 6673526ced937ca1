// scheduler/simulation/predicted_machine.h
// Computes the machine of a simulated run, and the bytes that its layers move, from profiles and
// costs.
#pragma once

#include <vector>

#include "common/network_profile.h"
#include "scheduler/gpu_profile.h"
#include "scheduler/host_memory.h"
#include "scheduler/layer_cost.h"
#include "scheduler/network_clock.h"
#include "scheduler/simulation/machine.h"

namespace rp {

// `pinned`: true if weights are read from registered memory. (Otherwise an upload moves
// ServerProfile::pageable_bytes_per_byte times its bytes through host memory.)
[[nodiscard]] Machine predicted_machine(const GpuProfile& gpu, const ServerProfile& server, bool pinned = true);

// Returns several nodes with such links to each other.
[[nodiscard]] RunNodes predicted_nodes(const NetworkProfile& network, int num_nodes, int rounds_per_step);

// Returns how long the messages of each layer are on the link of such a node, for searches. Empty if there is one
// node, or if bytes take no time.
[[nodiscard]] PlanNetwork plan_network(const std::vector<LayerBytes>& layers, const RunNodes& nodes);

// Returns the bytes by layer, the head last.
[[nodiscard]] std::vector<LayerBytes> predicted_bytes(const std::vector<LayerCost>& costs,
                                                      const HostSettings& settings);

}  // namespace rp
