// coordinator/simulated_steps.h
// Simulates the steps that a run had, to compare the simulated times with the measured ones.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/schedule_report.h"
#include "hoststore/catalogue.h"
#include "roundpipe/plan.h"
#include "scheduler/simulation/machine.h"

namespace rp {

struct StepSettings {
  int num_workers = 1;
  bool asynchronous = false;
  int first_trained_layer = 0;
  std::vector<LayerBytes> layers{};  // of moved_bytes()
  RunNodes nodes{};
};

// Returns what each layer of a pipeline moves to a worker and back, and between nodes.
[[nodiscard]] std::vector<LayerBytes> moved_bytes(const Catalogue& catalogue, int pipeline);

// Describes the steps as work for simulate_run(). All copies and updates take no time; the caller may change the
// machine. If this node has computed less than the first one, whose rounds are simulated, there are no other nodes.
// `times`: of all layers; the head is the last one. REQUIRES: `times` has one entry for each layer of the plan.
[[nodiscard]] RunWork work_like(const ScheduleReport::Shape& shape, const std::vector<LayerWork>& times,
                                const StepSettings& settings);

// Returns how many of the first steps to leave out when measuring the last step's plan: at least
// `least`, and all steps that had another plan together with the two steps after these, of which
// the first overlaps with them. Keeps at least the last step. REQUIRES: there were two steps.
[[nodiscard]] std::uint64_t steps_to_leave_out(const ScheduleReport& report, std::uint64_t least);

// Returns the measured and the simulated time of a step. `times`: the times of the layers in the
// run, as Coordinator::layer_times() returns them.
[[nodiscard]] StepTimes compare_steps(const ScheduleReport& report, const std::vector<LayerTiming>& times,
                                      const StepSettings& settings);

}  // namespace rp
