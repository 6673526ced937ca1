// scheduler/ramp_search.h
// Improves plans whose stages grow from layer to layer, forward and backward ("ramps"), as nearly
// all good plans do. Such a plan is determined by the lengths of its stages, without their order. A
// change alters a few numbers, and several changes are made at once. A plan has a key, a sum of one
// number for each length, by which plans that were simulated before are recognised. Most plans are,
// and are not simulated again.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "scheduler/plan_cost.h"
#include "scheduler/plan_seeds.h"

namespace rp {

class RampSearch {
 public:
  // `cost` must outlive the search.
  RampSearch(PlanCost& cost, int num_round_choices, int least_fused_start, std::uint64_t seed);

  struct Annealing {
    double temperature = 0;       // ms, at its beginning
    double last_temperature = 0;  // ms, at its end
    Horizon horizon = Horizon::kShort;
    // In simulated tasks, including effort_of_changes(). Annealing takes about `num_tasks`. It stops
    // at `max_tasks`, which is checked before each change, since one change may exceed `num_tasks`.
    std::uint64_t num_tasks = 0;
    std::uint64_t max_tasks = UINT64_MAX;
  };
  // Anneals, beginning with the ramp that has the stages of `best`. Sets `best` to the best plan
  // found if that is shorter.
  void anneal(PlanCandidate& best, const Annealing& how);

  // The cost of all changes that were tried, in simulated tasks.
  [[nodiscard]] std::uint64_t effort_of_changes() const;

 private:
  struct Ramp {
    std::array<std::vector<int>, 2> lengths;  // of forward and of backward stages, in no particular order
    int round_choice = 0;
    std::uint64_t key = 0;  // equal for equal lengths
  };
  [[nodiscard]] bool mutate();
  [[nodiscard]] bool mutate_lengths(std::size_t side, int kind);
  [[nodiscard]] bool move_fused_start();
  void set_length(std::size_t side, std::size_t stage, int length);  // 0: removes the stage
  [[nodiscard]] Ramp ramp_of(const Cuts& cuts);
  [[nodiscard]] const Cuts& cuts_of(const Ramp& ramp);
  [[nodiscard]] double step_ms(const Ramp& ramp, Horizon horizon);
  [[nodiscard]] std::size_t draw(std::size_t below);

  struct Known {
    std::uint64_t key = 0;
    double step_ms = 0;  // INFINITY: exceeds a limit
  };

  PlanCost& cost_;
  const int num_round_choices_, least_fused_start_;
  std::uint64_t random_;
  std::uint64_t num_changes_ = 0;
  Ramp next_;                                       // what mutate() changes
  Cuts cuts_;                                       // the result of cuts_of()
  std::vector<int> counts_;                         // number of stages by length, in cuts_of()
  std::array<std::vector<std::uint64_t>, 2> keys_;  // by side and length
  std::vector<Known> known_;
};

}  // namespace rp
