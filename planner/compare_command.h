// planner/compare_command.h
// `rp-plan compare`: simulates a step of the same layers by every schedule, and shows the results
// as a table and as a page of timelines.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/options.h"
#include "planner/prediction/workload_file.h"
#include "planner/simulate_command.h"
#include "planner/timeline/timeline_page.h"

namespace rp {

struct ComparedSchedule {
  std::optional<BoundSchedule> schedule;  // nullopt: RoundPipe
  std::optional<SimulationResult> result = std::nullopt;
  std::string refusal{};  // why there is no result; else empty
};

// Simulates all six schedules. `effort`: of the search for RoundPipe's plans. A schedule that these
// layers, GPUs or stages do not allow has a refusal.
[[nodiscard]] std::vector<ComparedSchedule> compare_schedules(const WorkloadFile& file, Effort effort);

[[nodiscard]] std::string comparison_text(const std::vector<ComparedSchedule>& schedules);
// Returns {"schedules": […]}, each as printed by `rp-plan simulate --json`, or with "refusal".
[[nodiscard]] std::string comparison_json(const std::vector<ComparedSchedule>& schedules);
// Throws rp::Error (kUsage) if there are too many tasks to draw.
[[nodiscard]] TimelinePage comparison_page(const WorkloadFile& file, const std::vector<ComparedSchedule>& schedules,
                                           const std::string& title);

}  // namespace rp
