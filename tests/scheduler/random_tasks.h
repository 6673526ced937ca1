// tests/scheduler/random_tasks.h
// Makes random planning tasks of all kinds, and checks the properties that every plan for one must
// have.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "scheduler/planner.h"
#include "scheduler/round_schedule.h"
#include "scheduler/simulator.h"

namespace rp::test {

inline PlanTask random_task(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&random](int least, int most) { return std::uniform_int_distribution<>(least, most)(random); };
  const auto real = [&random](double least, double most) {
    return std::uniform_real_distribution<>(least, most)(random);
  };
  PlanTask task;
  Workload& workload = task.workload;
  workload.num_gpus = draw(1, 9);
  const int num_layers = draw(0, draw(1, 40));
  const double spread = draw(0, 1) * real(0, 0.9);
  for (int layer = 0; layer < num_layers; ++layer) {
    const double size = draw(0, 20) == 0 ? real(0.1, 6) : 1 + real(-spread, spread);
    workload.layers.push_back({.forward = 10 * size, .backward = 10 * size * real(1, 3)});
  }
  workload.head = {.forward = real(1, 40), .backward = real(1, 80)};
  workload.hop = draw(0, 1) * real(0, 8);
  workload.fused_waits = draw(0, 1) == 1;
  if (draw(0, 4) == 0) {
    for (int gpu = 0; gpu < workload.num_gpus; ++gpu) workload.slowness.push_back(real(0.5, 2));
  }
  const int round = draw(1, 12), num_rounds = draw(1, 3);
  workload.num_microbatches = round * num_rounds;
  task.round_choices = {round};
  if (num_rounds > 1 && draw(0, 1) == 1) task.round_choices.push_back(workload.num_microbatches);
  task.asynchronous = draw(0, 1) == 1;
  task.limits.least_fused_start = std::max(0, num_layers - draw(0, 2));
  if (draw(0, 2) == 0) {
    const int max_forward = draw(1, 8), max_backward = draw(1, max_forward);
    for (int layer = 0; layer <= num_layers; ++layer) {
      task.limits.forward.push_back(std::min(num_layers + 1, layer + max_forward));
      task.limits.backward.push_back(std::min(num_layers + 1, layer + max_backward));
    }
  }
  if (draw(0, 3) == 0) workload.first_trained_layer = draw(0, num_layers);
  return task;
}

// Computes the step of a plan from scratch, in another way than the search does.
inline double step_ms_of(const PlanTask& task, const Plan& plan, int round_microbatches) {
  Workload workload = task.workload;
  workload.round_microbatches = round_microbatches;
  const std::vector<StageWork> stages = stage_works(workload, plan);
  return task.asynchronous ? RoundSimulator(workload).period(stages)
                           : simulate(chained_schedule(workload, stages, 1)).makespan;
}

inline void expect_good_plan(const PlanTask& task, const PlanChoice& choice) {
  const int num_layers = task.workload.num_layers() + 1;
  ASSERT_NO_THROW(validate_plan(choice.plan, num_layers));
  EXPECT_GE(choice.plan.fused_start, task.limits.least_fused_start);
  const auto expect_kept = [](const std::vector<LayerRange>& stages, const std::vector<int>& limits) {
    if (limits.empty()) return;
    for (const LayerRange& range : stages) EXPECT_LE(range.end, limits[range.first]);
  };
  expect_kept(choice.plan.forward, task.limits.forward);
  expect_kept(choice.plan.backward, task.limits.backward);
  const double tolerance = 1e-9 * choice.step_ms;
  EXPECT_NEAR(choice.step_ms, step_ms_of(task, choice.plan, choice.round_microbatches), tolerance);
  EXPECT_GE(choice.step_ms, choice.lower_bound_ms - tolerance);

  PlanCost cost(task);
  Cuts greedy = greedy_cuts(cost.sums(), task.workload.num_gpus, task.limits.least_fused_start);
  for (; greedy.round_choice < static_cast<int>(task.round_choices.size()); ++greedy.round_choice) {
    if (!cost.fits(greedy)) continue;
    EXPECT_LE(choice.step_ms, cost.step_ms(greedy, Horizon::kExact) + tolerance);
  }
}

}  // namespace rp::test
