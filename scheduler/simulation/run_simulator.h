// scheduler/simulation/run_simulator.h
// Simulates a whole run in virtual time: what each GPU computes, every copy on its link, every
// update in host memory. It follows the order between processes that workers and coordinator keep
// (docs/design/protocol.md): two stage buffers, inputs one microbatch ahead, commits and updates in
// slot order, two rounds in flight. With links that take no time its results are those of
// RoundSimulator. Design: docs/design/simulation.md.
#pragma once

#include "scheduler/round_schedule.h"
#include "scheduler/simulation/machine.h"
#include "scheduler/simulation/run_record.h"

namespace rp {

// REQUIRES: work.layers is empty or has one element for each layer and the head; the stages belong
// to a plan for the workload.
[[nodiscard]] RunResult simulate_run(const RunWork& work, const std::vector<StageWork>& stages,
                                     const RunLength& length = {});

}  // namespace rp
