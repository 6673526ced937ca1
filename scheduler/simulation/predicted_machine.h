// scheduler/simulation/predicted_machine.h
// The machine of a simulated run, and what its layers move, from profiles and costs.
#pragma once

#include <vector>

#include "scheduler/gpu_profile.h"
#include "scheduler/host_memory.h"
#include "scheduler/layer_cost.h"
#include "scheduler/simulation/machine.h"

namespace rp {

// `pinned`: whether weights are read from registered memory. (Else an upload moves
// ServerProfile::pageable_bytes_per_byte times its bytes through host memory.)
[[nodiscard]] Machine predicted_machine(const GpuProfile& gpu, const ServerProfile& server, bool pinned = true);

// By layer, the head as the last one.
[[nodiscard]] std::vector<LayerBytes> predicted_bytes(const std::vector<LayerCost>& costs,
                                                      const HostSettings& settings);

}  // namespace rp
