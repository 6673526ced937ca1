// scheduler/planner.h
// Searches for the plan whose simulated step is the shortest: which layers form a stage, forward
// and backward, which layers are fused with the head, and (if there is a choice) how many
// microbatches a round has. Design: docs/design/planner.md.
//
// A run calls fast_plan() between two rounds (coordinator/run_plans/stage_plans.h); rp-plan uses
// both functions.
//
// A search is deterministic: it depends on its input, its seed and its budget of work, not on the
// clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <random>
#include <vector>

#include "scheduler/plan_cost.h"
#include "scheduler/plan_seeds.h"
#include "scheduler/ramp_search.h"

namespace rp {

struct PlanChoice {
  Plan plan;
  int round_microbatches = 0;
  double step_ms = 0;         // makespan, or for asynchronous steps and on several nodes the period
  double lower_bound_ms = 0;  // for the work of this plan
  std::uint64_t effort = 0;   // of the search, in simulated tasks (one stage of one microbatch)
};

// Searches as long as the runtime can afford between rounds: about 10 ms on one core for models of
// up to 64 layers, 40 ms for 94 layers, and about a second if a step has a million tasks. Throws
// as PlanCost does.
[[nodiscard]] PlanChoice fast_plan(const PlanTask& task, std::uint64_t seed = 1);

// Searches until `time` is over. Throws as PlanCost does.
[[nodiscard]] PlanChoice thorough_plan(const PlanTask& task, std::chrono::milliseconds time = std::chrono::seconds(5));

class PlanSearch {
 public:
  // Throws as PlanCost does.
  explicit PlanSearch(const PlanTask& task, std::uint64_t seed = 1);

  // Builds seeds at the first call and improves the best of them, until about `num_tasks` tasks
  // (one stage of one microbatch) were simulated. A further call continues the search. If the
  // simulation of one plan costs more than `num_tasks`, a few plans are still simulated.
  void run(std::uint64_t num_tasks);

  // REQUIRES: run() was called.
  [[nodiscard]] PlanChoice best();
  // True if no plan can be better than the best one so far. REQUIRES: run() was called.
  [[nodiscard]] bool is_perfect();

 private:
  void run_tournament(std::uint64_t num_tasks);
  using Annealing = RampSearch::Annealing;
  void anneal(PlanCandidate& best, const Annealing& how);
  [[nodiscard]] bool mutate(Cuts& cuts);
  [[nodiscard]] bool mutate_ends(std::vector<int>& ends);
  [[nodiscard]] bool move_fused_start(Cuts& cuts);
  void offer(const PlanCandidate& candidate);
  void offer_greedy(std::uint64_t exact_until);
  // In tasks. Changes that are not simulated count too, so that a search ends if nothing can be
  // changed.
  [[nodiscard]] std::uint64_t effort() const {
    return cost_.num_simulated_tasks() + ramps_.effort_of_changes() + rejected_;
  }
  [[nodiscard]] int draw(int below) { return static_cast<int>(random_() % static_cast<std::uint64_t>(below)); }

  const PlanTask task_;
  PlanCost cost_;
  std::mt19937_64 random_;
  RampSearch ramps_;
  std::vector<PlanCandidate> seeds_;
  std::size_t next_seed_ = 0;
  int num_tournaments_ = 0;
  std::uint64_t rejected_ = 0;
  std::uint64_t ends_at_ = 0;  // value of effort() at which run() ends, whatever is left to try
  Cuts best_;
  double best_ms_;  // Horizon::kExact
};

}  // namespace rp
