// pipeline/memory_plan.h
// Makes the MemoryPlan of a pipeline or of a session from the catalogue, the coordinator's budgets and the store.
#pragma once

#include <vector>

#include "coordinator/coordinator.h"
#include "hoststore/store.h"
#include "roundpipe/memory_plan.h"

namespace rp {

// Of one pipeline. `coordinator` may be absent: then no activations are known.
[[nodiscard]] MemoryPlan memory_plan_of(const Store& store, Coordinator* coordinator, int pipeline, bool in_files);

// Of all, with what the store has at this moment.
[[nodiscard]] MemoryPlan memory_plan_of_all(const Store& store, Coordinator* coordinator, bool in_files);

// `peaks`: by worker.
[[nodiscard]] std::vector<WorkerMemoryUse> worker_memory_of(const std::vector<DeviceMemoryPeaks>& peaks);

}  // namespace rp
