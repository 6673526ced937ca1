// planner/timeline/simulated_timeline.h
// Shows simulated steps as a section of a timeline page.
#pragma once

#include <vector>

#include "planner/timeline/timeline_page.h"
#include "scheduler/plan.h"
#include "scheduler/simulator.h"

namespace rp {

// The maximum number of tasks that are drawn.
inline constexpr std::uint64_t kMaxDrawnTasks = 1'000'000;
// The maximum number of GPUs that are drawn.
inline constexpr int kMaxDrawnGpus = 64;

// Returns the time at which all tasks of the steps up to `step` have ended.
[[nodiscard]] double end_of_step(const TaskGraph& graph, const Timeline& timeline, int step);

// Returns a section with GPUs as rows and the tasks from `first_ms` on, for `length_ms`. `stages`:
// the layers of each stage, where number `num_layers` is the head. The axis begins at 0.
// `several_steps`: mark to which step each task belongs.
[[nodiscard]] TimelineSection simulated_section(const TaskGraph& graph, const Timeline& timeline,
                                                const std::vector<LayerRange>& stages, int num_layers, double first_ms,
                                                double length_ms, bool several_steps);

}  // namespace rp
