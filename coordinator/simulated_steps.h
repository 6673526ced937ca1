// coordinator/simulated_steps.h
// What the simulator says of the steps that a run had.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/schedule_report.h"
#include "roundpipe/plan.h"
#include "scheduler/simulation/machine.h"

namespace rp {

struct StepSettings {
  int num_workers = 1;
  bool asynchronous = false;
  int first_trained_layer = 0;
};

// The steps as work for simulate_run(), with nothing that is moved: copies and updates are the caller's to add.
// `times`: of all layers, the head as the last one. REQUIRES: as many as the plan has.
[[nodiscard]] RunWork work_like(const ScheduleReport::Shape& shape, const std::vector<LayerWork>& times,
                                const StepSettings& settings);

// How many of the first steps are no measure of the last one's plan: `least`, and those with another plan, with the one
// that overlaps with them. At least the last step counts. REQUIRES: there were two steps.
[[nodiscard]] std::uint64_t steps_to_leave_out(const ScheduleReport& report, std::uint64_t least);

// `times`: what layers took in the run, as Coordinator::layer_times() has it.
[[nodiscard]] StepTimes compare_steps(const ScheduleReport& report, const std::vector<LayerTiming>& times,
                                      const StepSettings& settings);

}  // namespace rp
