// planner/timeline/run_timeline.h
// Shows a simulated run with its copies and updates as a section of a timeline page.
#pragma once

#include "planner/timeline/timeline_page.h"
#include "scheduler/plan.h"
#include "scheduler/simulation/run_record.h"

namespace rp {

// Returns a section with the first `steps` counted steps. GPUs are rows, with their copies in lanes
// below; the host's updates are a row, and each direction of the network of several nodes is one; the memory of GPU 0
// and the host's activations are strips, with the peak of the whole run. `num_layers`: of the plan, including the head
// as the last one. `warm_up`: RunLength::warm_up of the run. REQUIRES: the run was recorded and has at least that many
// counted steps.
[[nodiscard]] TimelineSection run_section(const RunResult& run, const Plan& plan, int num_layers, int num_gpus,
                                          int warm_up, int steps);

}  // namespace rp
