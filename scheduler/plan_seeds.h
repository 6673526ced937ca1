// scheduler/plan_seeds.h
// Plans of many shapes to begin a search with.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "scheduler/plan_cost.h"

namespace rp {

struct PlanCandidate {
  Cuts cuts;
  double step_ms = 0;  // of a short horizon
};

// The cut that the Python version makes: of the times that a stage may take, between the longest layer's and 1.1 times
// that, the one whose number of stages (or of GPUs, if that is more) times itself is the least. The fused stage and
// forward stages are packed from the deep end, backward stages from the other. Does not look at limits but for the
// fused stage's.
[[nodiscard]] Cuts greedy_cuts(const StageSums& sums, int num_gpus, int least_fused_start);

// At least one, cheapest first, at most one of a number of forward stages, of backward stages and round. Simulates
// about `num_tasks` tasks.
[[nodiscard]] std::vector<PlanCandidate> plan_seeds(const PlanTask& task, PlanCost& cost, std::mt19937_64& random,
                                                    std::uint64_t num_tasks);

}  // namespace rp
