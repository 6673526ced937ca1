// pipeline/memory_plan.h
// Makes the MemoryPlan of a pipeline or of a session from the catalogue, the coordinator's budgets and the store.
#pragma once

#include <vector>

#include "coordinator/coordinator.h"
#include "hoststore/store.h"
#include "roundpipe/memory_plan.h"

namespace rp {

// Returns the plan of one pipeline. `coordinator` may be null; then the activations are unknown.
[[nodiscard]] MemoryPlan memory_plan_of(const Store& store, Coordinator* coordinator, int pipeline, bool in_files);

// Returns the plan of all pipelines, with the memory that the store occupies at the moment.
[[nodiscard]] MemoryPlan memory_plan_of_all(const Store& store, Coordinator* coordinator, bool in_files);

// `peaks` is indexed by worker.
[[nodiscard]] std::vector<WorkerMemoryUse> worker_memory_of(const std::vector<DeviceMemoryPeaks>& peaks);

}  // namespace rp
