// planner/timeline/run_timeline.h
// A simulated run with its copies and updates as a section of a timeline page.
#pragma once

#include "planner/timeline/timeline_page.h"
#include "scheduler/plan.h"
#include "scheduler/simulation/run_record.h"

namespace rp {

// The first `steps` counted steps: GPUs as rows with their copies in lanes below, the host's updates as a row, and
// the memory of GPU 0 and the host's activations as strips, with the peak of the whole run. `num_layers`: of
// the plan, the last one being the head. REQUIRES: the run was recorded, for so many steps; warm_up: its RunLength's.
[[nodiscard]] TimelineSection run_section(const RunResult& run, const Plan& plan, int num_layers, int num_gpus,
                                          int warm_up, int steps);

}  // namespace rp
