// scheduler/plan_cost.h
// Plans while they are searched for, and what their simulated step takes.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/plan.h"
#include "scheduler/round_schedule.h"
#include "scheduler/workload.h"

namespace rp {

// How long stages may be. Plans count the head as a layer behind the others.
struct StageLimits {
  // Element i: the largest end of a stage that begins with layer i; more than i. Empty: no limit.
  std::vector<int> forward{}, backward{};
  int least_fused_start = 0;  // the fused stage begins there at the earliest
};

struct PlanTask {
  Workload workload;  // its round_microbatches is not read
  // Microbatches of a round that may be chosen; each divides the step's.
  std::vector<int> round_choices;
  bool asynchronous = false;  // the period is to be short, else the makespan
  StageLimits limits;
};

// Ends of the stages, ascending, in forward and backward order of layers alike; the fused stage begins at the last one.
struct Cuts {
  std::vector<int> forward{}, backward{};
  int round_choice = 0;  // index into PlanTask::round_choices
  bool operator==(const Cuts&) const = default;
};
[[nodiscard]] Plan plan_of(const Cuts& cuts);
[[nodiscard]] Cuts cuts_of(const Plan& plan, int round_choice);

// How many chained steps are simulated to compare asynchronous plans: from idle GPUs on, or the published figure's (see
// RoundSimulator::period).
enum class Horizon { kShort, kLong, kExact };

class PlanCost {
 public:
  // Throws rp::Error (kUsage) for a task without GPUs or choices, rounds that do not make a step, limits of another
  // model.
  explicit PlanCost(const PlanTask& task);

  [[nodiscard]] bool fits(const Cuts& cuts) const;
  // Makespan, or period of asynchronous steps.
  [[nodiscard]] double step_ms(const Cuts& cuts, Horizon horizon);
  // See round_schedule.h.
  [[nodiscard]] double busy_ms_per_gpu(const Cuts& cuts);
  [[nodiscard]] double lower_bound_ms(const Cuts& cuts);
  // Stages in the order of their slots. Valid until the next call.
  [[nodiscard]] const std::vector<StageWork>& stages(const Cuts& cuts);

  [[nodiscard]] int num_layers() const { return num_layers_; }  // with the head
  [[nodiscard]] const StageSums& sums() const { return sums_; }
  // What all simulations have cost so far, in tasks: one stage of one microbatch.
  [[nodiscard]] std::uint64_t num_simulated_tasks() const { return num_tasks_; }

 private:
  const bool asynchronous_;
  const StageLimits limits_;
  const int num_layers_;
  const StageSums sums_;
  std::vector<Workload> workloads_;         // by round choice
  std::vector<RoundSimulator> simulators_;  // likewise
  std::vector<StageWork> stages_;
  std::uint64_t num_tasks_ = 0;
};

}  // namespace rp
