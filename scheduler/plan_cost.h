// scheduler/plan_cost.h
// The problem of a search for plans (PlanTask), plans in the form that searches change (Cuts), and
// the time of their simulated step (PlanCost).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/network_clock.h"
#include "scheduler/plan.h"
#include "scheduler/round_schedule.h"
#include "scheduler/workload.h"

namespace rp {

// The maximum lengths of stages, and how many activations they may keep. In these plans the head counts as a layer
// after the others.
struct StageLimits {
  // Element i: the largest end of a stage that begins with layer i; it is more than i. Empty: no
  // limit.
  std::vector<int> forward{}, backward{};
  int least_fused_start = 0;              // the first layer of the fused stage is at least this one
  std::optional<int> most_kept_inputs{};  // the maximum of kept_inputs(), which the host's memory may bound
};

struct PlanTask {
  Workload workload;  // its round_microbatches is ignored
  // The choices for the number of microbatches of a round; each divides the step's number.
  std::vector<int> round_choices;
  bool asynchronous = false;  // true: minimise the period; false: the makespan, or on several nodes the period, too
  StageLimits limits;
  PlanNetwork network{};  // between the nodes; on one node without layers
};

// The ends of the stages, in ascending order for forward and for backward stages. The fused stage
// begins at the last end.
struct Cuts {
  std::vector<int> forward{}, backward{};
  int round_choice = 0;  // index into PlanTask::round_choices
  bool operator==(const Cuts&) const = default;
};
[[nodiscard]] Plan plan_of(const Cuts& cuts);

// Returns the number of layers after the first whose input the host keeps for a round, with recompute by stage: those
// at which a forward, the fused or a backward stage begins.
[[nodiscard]] int kept_inputs(const Cuts& cuts);
[[nodiscard]] int kept_inputs(const Plan& plan);

// Returns cuts into the longest stages within the limits of their lengths. If forward stages may be as long as backward
// stages, no other cuts keep fewer inputs. `num_layers`: including the head.
[[nodiscard]] Cuts longest_cuts(const StageLimits& limits, int num_layers);

// How many steps are simulated to compare plans whose steps depend on those before: asynchronous ones, and all on
// several nodes. A few or more from idle GPUs on (kShort, kLong), or as many as in the published figures (kExact: see
// RoundSimulator::period); fewer if they are synchronous.
enum class Horizon { kShort, kLong, kExact };

class PlanCost {
 public:
  // Throws rp::Error (kUsage) if the task has no GPUs or no choices of rounds, if rounds do not
  // divide the step, if the limits or the messages are for another model, or if longest_cuts() keep
  // more inputs than the limits allow.
  explicit PlanCost(const PlanTask& task);

  [[nodiscard]] bool fits(const Cuts& cuts) const;
  // Returns true if step_ms() depends on the horizon.
  [[nodiscard]] bool has_horizons() const { return asynchronous_ || network_.has_value(); }
  // Returns the makespan, or for asynchronous steps and on several nodes the period.
  [[nodiscard]] double step_ms(const Cuts& cuts, Horizon horizon);
  // See the functions of the same names in round_schedule.h.
  [[nodiscard]] double busy_ms_per_gpu(const Cuts& cuts);
  [[nodiscard]] double lower_bound_ms(const Cuts& cuts);
  // Returns the stages in the order of their slots. Valid until the next call of stages() or of a
  // function that takes cuts.
  [[nodiscard]] const std::vector<StageWork>& stages(const Cuts& cuts);

  [[nodiscard]] int num_layers() const { return num_layers_; }  // including the head
  [[nodiscard]] const StageSums& sums() const { return sums_; }
  // The cost of all simulations so far, in tasks (one stage of one microbatch).
  [[nodiscard]] std::uint64_t num_simulated_tasks() const { return num_tasks_; }

 private:
  const bool asynchronous_;
  const StageLimits limits_;
  const int num_layers_;
  const StageSums sums_;
  std::vector<Workload> workloads_;         // by round choice
  std::vector<RoundSimulator> simulators_;  // by round choice
  std::optional<NetworkClock> network_;     // empty: nothing waits for other nodes
  std::vector<StageWork> stages_;
  std::uint64_t num_tasks_ = 0;
};

}  // namespace rp
