// scheduler/planner.h
// The plan whose simulated step is the shortest: which layers make a stage, forward and backward, what is fused, and (where
// that is free) how many microbatches a round has.
//
// Not used by a run yet: StagePlans has balanced_plans() (partition.h).
//
// Plans count the head as a layer behind the others, as in round_schedule.h. A search is deterministic: it depends on its
// input, its seed and the work it is given, not on the clock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "scheduler/plan.h"
#include "scheduler/round_schedule.h"
#include "scheduler/workload.h"

namespace rp {

struct PlanTask {
  Workload workload;  // its round_microbatches is not read
  // Microbatches of a round that may be chosen; each divides the step's.
  std::vector<int> round_choices;
  bool asynchronous = false;  // the period is to be short, else the makespan
  int max_fused_layers = 2;   // in the fused stage, beside the head
  // Weights of the layers and the head; empty: no limit. A layer that is larger gets a stage of its own.
  std::vector<std::uint64_t> bytes{};
  std::uint64_t max_stage_bytes = UINT64_MAX;
};

struct PlanChoice {
  Plan plan;
  int round_microbatches = 0;
  double step_ms = 0;         // makespan, or period of asynchronous steps
  double lower_bound_ms = 0;  // for the plan's own work
};

class PlanSearch {
 public:
  // Throws rp::Error (kUsage) for a task without layers, GPUs or choices.
  explicit PlanSearch(PlanTask task, std::uint64_t seed = 1);

  // Balanced plans of all numbers of stages that may be worth it, then improvements of the best of them, until about
  // `num_tasks` tasks (one stage of one microbatch) were simulated. May be called again: it goes on.
  void run(std::uint64_t num_tasks);

  // REQUIRES: run().
  [[nodiscard]] PlanChoice best() const;
  [[nodiscard]] std::uint64_t num_simulated_tasks() const { return num_tasks_; }

 private:
  // Ends of the stages, ascending, in forward and backward order of layers alike; the fused stage begins at the last one.
  struct Cuts {
    std::vector<int> forward, backward;
    int round_choice = 0;
    bool operator==(const Cuts&) const = default;
  };
  struct Candidate {
    Cuts cuts;
    double cost = 0;
  };

  [[nodiscard]] static Plan plan_of(const Cuts& cuts);
  void fill_stages(const Cuts& cuts);
  [[nodiscard]] double cost(const Cuts& cuts, bool exact);
  [[nodiscard]] bool fits(const Cuts& cuts) const;
  [[nodiscard]] int least_fused_start() const { return std::max(0, num_layers_ - 1 - task_.max_fused_layers); }
  [[nodiscard]] static std::vector<int> pack(const std::vector<double>& sums, int end, double longest, double slope);
  [[nodiscard]] static std::vector<int> spread(const std::vector<double>& sums, int end, int num_stages);
  void seed_even(std::uint64_t num_tasks);
  void seed_ramps(std::uint64_t num_tasks);
  void seed_candidates(std::uint64_t num_tasks);
  void run_tournament(std::uint64_t num_tasks);
  void anneal(Candidate& best, double start_temperature, std::uint64_t num_tasks);
  [[nodiscard]] bool mutate(Cuts& cuts);
  [[nodiscard]] bool mutate_ends(std::vector<int>& ends);
  [[nodiscard]] bool move_fused_start(Cuts& cuts);
  void offer(const Candidate& candidate);
  [[nodiscard]] int draw(int below) { return static_cast<int>(random_() % static_cast<std::uint64_t>(below)); }

  const PlanTask task_;
  const int num_layers_;  // with the head
  const StageSums sums_;
  std::vector<std::uint64_t> byte_sums_;
  std::vector<Workload> workloads_;         // by round choice
  std::vector<RoundSimulator> simulators_;  // likewise
  std::mt19937_64 random_;
  std::vector<Candidate> seeds_;  // cheapest first
  std::size_t next_seed_ = 0;
  Candidate best_;  // exact cost
  std::vector<StageWork> stages_;  // of cost()
  std::uint64_t num_tasks_ = 0;
};

}  // namespace rp
