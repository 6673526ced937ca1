#include "scheduler/bound/bound_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "scheduler/bound/bound_cost.h"
#include "tests/scheduler/golden_schedules.h"

namespace rp::test {
namespace {

constexpr BoundSchedule kSchedules[] = {BoundSchedule::kGPipe, BoundSchedule::k1F1B, BoundSchedule::kInterleaved,
                                        BoundSchedule::kLoopedBfs, BoundSchedule::kZbH1};

bool is_looped(BoundSchedule schedule) {
  return schedule == BoundSchedule::kInterleaved || schedule == BoundSchedule::kLoopedBfs;
}

Workload random_workload(std::mt19937& random, int num_layers) {
  std::uniform_real_distribution<> real(0.5, 2);
  Workload workload = golden_workload(0, {}, {20 * real(random), 40 * real(random)}, real(random));
  workload.num_gpus = 2 + static_cast<int>(random() % 3);
  workload.num_microbatches = workload.round_microbatches = workload.num_gpus * (1 + static_cast<int>(random() % 3));
  for (int i = 0; i < num_layers; ++i) workload.layers.push_back({10 * real(random), 20 * real(random)});
  if (random() % 2 == 0) {
    for (int gpu = 0; gpu < workload.num_gpus; ++gpu) workload.slowness.push_back(real(random));
  }
  return workload;
}

TEST(BoundCost, GivesTheBitsOfTheSimulatedGraph) {
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    const Workload workload = random_workload(random, 12);
    for (const BoundSchedule schedule : kSchedules) {
      const int num_stages = workload.num_gpus * (is_looped(schedule) ? 1 + static_cast<int>(random() % 3) : 1);
      std::vector<int> stages(static_cast<std::size_t>(num_stages), 1);
      for (int left = 12 - num_stages; left > 0; --left) ++stages[random() % stages.size()];
      BoundCost cost(schedule, workload, num_stages);
      for (int again = 0; again < 2; ++again) {
        ASSERT_EQ(cost.makespan(stages), simulate(bound_schedule(schedule, workload, stages)).makespan) << i;
        std::next_permutation(stages.begin(), stages.end());
      }
    }
  }
}

// Returns the longest stage of the best cut, which it finds by trying all cuts.
double least_longest(const Workload& workload, int first, int num_stages) {
  double sum = num_stages == 1 ? workload.head.forward + workload.head.backward : 0, least = INFINITY;
  if (num_stages == 1) {
    for (int i = first; i < workload.num_layers(); ++i)
      sum += 2 * workload.layers[i].forward + workload.layers[i].backward;
    return sum;
  }
  for (int end = first + 1; end + num_stages - 2 <= workload.num_layers(); ++end) {
    const LayerWork& layer = workload.layers[end - 1];
    sum += 2 * layer.forward + layer.backward;
    least = std::min(least, std::max(sum, least_longest(workload, end, num_stages - 1)));
  }
  return least;
}

// With one microbatch, a step of GPipe takes the same time with any cut, so the first cut is kept,
// which is the evenest one.
TEST(BoundPlanner, BeginsWithStagesWhoseLongestIsShortest) {
  std::mt19937 random(5);
  for (int i = 0; i < 100; ++i) {
    Workload workload = random_workload(random, 3 + static_cast<int>(random() % 9));
    workload.slowness.clear();
    workload.hop = 0;
    workload.num_microbatches = workload.round_microbatches = 1;
    const std::vector<int> stages = plan_bound_stages(BoundSchedule::kGPipe, workload);
    const std::vector<BoundWork> works = bound_works(workload, stages, false);
    double longest = 0;
    for (const BoundWork& work : works) longest = std::max(longest, work.forward + work.backward);
    EXPECT_NEAR(longest, least_longest(workload, 0, workload.num_gpus), 1e-6) << i;
  }
}

// This took 90 s and more before searches had a bound.
TEST(BoundPlanner, ALargeModelIsNoLongSearch) {
  std::mt19937 random(7);
  Workload workload = random_workload(random, 1024);
  workload.num_gpus = 64;
  workload.slowness.clear();
  workload.num_microbatches = workload.round_microbatches = 64;
  for (const BoundSchedule schedule : kSchedules) {
    const std::vector<int> stages = plan_bound_stages(schedule, workload);
    EXPECT_NO_THROW(check_bound_stages(schedule, workload, stages));
  }
}

}  // namespace
}  // namespace rp::test
