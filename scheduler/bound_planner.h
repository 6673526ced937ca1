// scheduler/bound_planner.h
// Stages for the schedules that bind them to a GPU: as even as possible, then changed as long as the simulated step gets
// shorter.
#pragma once

#include <vector>

#include "scheduler/bound_schedules.h"
#include "scheduler/workload.h"

namespace rp {

// The number of layers of each stage, the last one with the head besides. Throws rp::Error (kUsage) where the model has too few
// layers for the GPUs, and as bound_schedule().
[[nodiscard]] std::vector<int> plan_bound_stages(BoundSchedule schedule, const Workload& workload);

}  // namespace rp
