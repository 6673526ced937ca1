// scheduler/simulation/machine_run.h
// A run of a model on a machine, from what its layers cost and what the GPUs and the server can do.
#pragma once

#include <vector>

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
  HostSettings host{};         // with the microbatches of a round
  bool pinned_weights = true;  // false: uploads read them through pageable memory
};

// `costs`: of one microbatch, as Workload has layers and head.
[[nodiscard]] RunWork run_work(const std::vector<LayerCost>& costs, const MachineRun& run);

}  // namespace rp
