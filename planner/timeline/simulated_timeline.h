// planner/timeline/simulated_timeline.h
// Simulated steps as a section of a timeline page.
#pragma once

#include <string>
#include <vector>

#include "planner/timeline/timeline_page.h"
#include "scheduler/plan.h"
#include "scheduler/simulator.h"

namespace rp {

// More tasks than that are not drawn.
inline constexpr std::uint64_t kMaxDrawnTasks = 1'000'000;
// Nor are more GPUs.
inline constexpr int kMaxDrawnGpus = 64;

// When all tasks of the steps up to `step` are over.
[[nodiscard]] double end_of_step(const TaskGraph& graph, const Timeline& timeline, int step);

// GPUs as rows, tasks from `first_ms` on, for `length_ms`; `stages`: the layers of each, num_layers being the head. The
// axis begins at 0. `several_steps`: they are told apart.
[[nodiscard]] TimelineSection simulated_section(const TaskGraph& graph, const Timeline& timeline,
                                                const std::vector<LayerRange>& stages, int num_layers, double first_ms,
                                                double length_ms, bool several_steps);

}  // namespace rp
