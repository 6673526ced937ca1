// scheduler/bound/bound_planner.h
// Finds stages for the schedules that bind them to GPUs: starts from stages as even as possible and
// changes them while the simulated step gets shorter.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/bound/bound_schedules.h"
#include "scheduler/workload.h"

namespace rp {

// Bounds on what a search simulates, in tasks: for even cuts into all numbers of stages together,
// and for changes to them. Models of 64 layers with 16 microbatches on 8 GPUs need at most a fifth
// of them. Larger problems try fewer numbers of stages and fewer changes.
inline constexpr std::uint64_t kMaxEvenTasks = 4'000'000, kMaxImprovingTasks = 40'000'000;

// Returns the number of layers of each stage; the last stage has the head in addition. Throws
// rp::Error (kUsage) if the model has too few layers for the GPUs, and as bound_schedule() does.
[[nodiscard]] std::vector<int> plan_bound_stages(BoundSchedule schedule, const Workload& workload);

}  // namespace rp
