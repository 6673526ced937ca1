// scheduler/bound/bound_planner.h
// Stages for the schedules that bind them to a GPU: as even as possible, then changed as long as the simulated step
// gets shorter.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/bound/bound_schedules.h"
#include "scheduler/workload.h"

namespace rp {

// How much a search simulates, in tasks: of even stages, of all their numbers together, and of changes to them. Models
// of 64 layers with 16 microbatches on 8 GPUs need no more than a fifth of it; beyond, fewer numbers of stages and
// fewer changes are tried.
inline constexpr std::uint64_t kMaxEvenTasks = 4'000'000, kMaxImprovingTasks = 40'000'000;

// The number of layers of each stage, the last one with the head besides. Throws rp::Error (kUsage) where the model has
// too few layers for the GPUs, and as bound_schedule().
[[nodiscard]] std::vector<int> plan_bound_stages(BoundSchedule schedule, const Workload& workload);

}  // namespace rp
