// scheduler/simulation/machine_run.h
// Builds the input of simulate_run() from the costs of a model's layers and the profiles of the
// GPUs and the server.
#pragma once

#include <vector>

#include "common/network_profile.h"
#include "scheduler/gpu_profile.h"
#include "scheduler/host_memory.h"
#include "scheduler/layer_cost.h"
#include "scheduler/simulation/machine.h"

namespace rp {

struct MachineRun {
  GpuProfile gpu{};
  ServerProfile server{};
  int num_gpus = 1;
  Accumulate accumulate = Accumulate::kFp32;
  HostSettings host{};         // num_microbatches: in a round; with the number of nodes
  bool pinned_weights = true;  // false: they are uploaded from pageable memory
  NetworkProfile network{};    // between the nodes
};

// Returns what the first of the nodes computes; no other one has more rounds. `costs`: by layer for one
// microbatch, the head last.
[[nodiscard]] RunWork run_work(const std::vector<LayerCost>& costs, const MachineRun& run);

}  // namespace rp
