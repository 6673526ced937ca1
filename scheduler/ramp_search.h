// scheduler/ramp_search.h
// Improves plans whose stages grow from layer to layer, forward and backward, as nearly all good ones do. The lengths
// of its stages are all there is to such a plan, in no order: several change by a few numbers, and a plan that was met
// before is known by a sum of them. Most are, and are not simulated again.
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
    std::uint64_t num_tasks = 0;           // of effort()
    std::uint64_t max_tasks = UINT64_MAX;  // of effort(): where one change costs more than num_tasks, it ends there
  };
  // Anneals from a plan with the stages of `best`, which becomes the best plan on the way if that is better.
  void anneal(PlanCandidate& best, const Annealing& how);

  // In simulated tasks, of all changes that were tried.
  [[nodiscard]] std::uint64_t effort_of_changes() const;

 private:
  struct Ramp {
    std::array<std::vector<int>, 2> lengths;  // of forward and of backward stages, in no order
    int round_choice = 0;
    std::uint64_t key = 0;  // the same for the same plan
  };
  [[nodiscard]] bool mutate();
  [[nodiscard]] bool mutate_lengths(std::size_t side, int kind);
  [[nodiscard]] bool move_fused_start();
  void set_length(std::size_t side, std::size_t stage, int length);  // 0: takes the stage out
  void set_round_choice(int choice);
  [[nodiscard]] Ramp ramp_of(const Cuts& cuts);
  [[nodiscard]] const Cuts& cuts_of(const Ramp& ramp);
  [[nodiscard]] double step_ms(const Ramp& ramp, Horizon horizon);
  [[nodiscard]] std::size_t draw(std::size_t below);

  struct Known {
    std::uint64_t key = 0;
    double step_ms = 0;  // INFINITY: beyond a limit
  };

  PlanCost& cost_;
  const int num_round_choices_, least_fused_start_;
  std::uint64_t random_;
  std::uint64_t num_changes_ = 0;
  Ramp next_;                                       // changed by mutate()
  Cuts cuts_;                                       // the last ones made
  std::vector<int> counts_;                         // of stages by length, while cuts are made
  std::array<std::vector<std::uint64_t>, 2> keys_;  // by side and length
  std::vector<Known> known_;
};

}  // namespace rp
