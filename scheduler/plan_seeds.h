// scheduler/plan_seeds.h
// Builds the plans of many shapes with which a search begins.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "scheduler/plan_cost.h"

namespace rp {

struct PlanCandidate {
  Cuts cuts;
  double step_ms = 0;  // of the horizon at which it was last simulated; seeds: Horizon::kShort
};

// Returns the cut that the Python version of RoundPipe computes. Bounds on the time of a stage are
// tried between the longest layer's time and 1.1 times that. The bound with the least product of
// itself and the number of stages (or of GPUs, if that is larger) wins. The fused stage and forward
// stages are packed from the deep end, backward stages from the other end. Limits other than that
// of the fused stage are ignored.
[[nodiscard]] Cuts greedy_cuts(const StageSums& sums, int num_gpus, int least_fused_start);

// Returns at least one plan, the fastest first, and at most one for each combination of the numbers
// of forward stages, backward stages and microbatches of a round. Simulates about `num_tasks`
// tasks.
[[nodiscard]] std::vector<PlanCandidate> plan_seeds(const PlanTask& task, PlanCost& cost, std::mt19937_64& random,
                                                    std::uint64_t num_tasks);

}  // namespace rp
