#include "scheduler/simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "scheduler/bound/bound_schedules.h"
#include "scheduler/round_schedule.h"
#include "tests/common/expect_refusal.h"
#include "tests/common/sanitizers.h"
#include "tests/scheduler/golden_schedules.h"
#include "tests/scheduler/random_tasks.h"

namespace rp::test {
namespace {

constexpr double kFourDecimals = 0.00005;

class GoldenSchedules : public testing::TestWithParam<GoldenModel> {
 protected:
  [[nodiscard]] double makespan(BoundSchedule schedule, const std::vector<int>& stages) const {
    return simulate(bound_schedule(schedule, GetParam().workload, stages)).makespan;
  }
};

INSTANTIATE_TEST_SUITE_P(Models, GoldenSchedules, testing::ValuesIn(golden_models()), [](const auto& model) {
  return model.param.name == "1.7b" ? "Of1_7b" : "Of" + model.param.name;
});

TEST_P(GoldenSchedules, HaveThePublishedMakespans) {
  const GoldenModel& golden = GetParam();
  EXPECT_NEAR(makespan(BoundSchedule::kGPipe, golden.bound), golden.gpipe, kFourDecimals);
  EXPECT_NEAR(makespan(BoundSchedule::k1F1B, golden.bound), golden.one_f_one_b, kFourDecimals);
  EXPECT_NEAR(makespan(BoundSchedule::kInterleaved, golden.looped), golden.interleaved, kFourDecimals);
  EXPECT_NEAR(makespan(BoundSchedule::kLoopedBfs, golden.looped), golden.looped_bfs, kFourDecimals);
  EXPECT_NEAR(RoundSimulator(golden.workload).makespan(stage_works(golden.workload, golden_plan(golden))),
              golden.roundpipe, kFourDecimals);
}

TEST_P(GoldenSchedules, HaveThePublishedSteadyStates) {
  const GoldenModel& golden = GetParam();
  Workload workload = golden.workload;
  const std::vector<StageWork> stages = stage_works(workload, golden_plan(golden));
  EXPECT_NEAR(busy_ms(workload, stages) / 8, golden.busy_per_gpu, 0.005);
  EXPECT_NEAR(RoundSimulator(workload).period(stages), golden.period_of_8, kFourDecimals);
  workload.round_microbatches = 16;
  EXPECT_NEAR(RoundSimulator(workload).period(stages), golden.period_of_16, kFourDecimals);
}

TEST_P(GoldenSchedules, DoTheSameWorkWhateverTheSchedule) {
  const GoldenModel& golden = GetParam();
  const double busy = busy_ms(golden.workload, stage_works(golden.workload, golden_plan(golden)));
  for (const auto schedule : {BoundSchedule::kGPipe, BoundSchedule::k1F1B, BoundSchedule::kZbH1}) {
    EXPECT_NEAR(simulate(bound_schedule(schedule, golden.workload, golden.bound)).busy, busy, 1e-6);
  }
}

// The zero-bubble schedule keeps the order of 1F1B and fills the idle time at its end.
TEST_P(GoldenSchedules, ZeroBubbleIsFasterThan1F1B) {
  const GoldenModel& golden = GetParam();
  EXPECT_LT(makespan(BoundSchedule::kZbH1, golden.bound), golden.one_f_one_b);
}

TEST_P(GoldenSchedules, TheGraphOfAStepHasTheTimesOfItsSlots) {
  for (const int round_microbatches : {8, 16}) {
    for (const bool fused_waits : {false, true}) {
      Workload workload = GetParam().workload;
      workload.round_microbatches = round_microbatches;
      workload.fused_waits = fused_waits;
      const std::vector<StageWork> stages = stage_works(workload, golden_plan(GetParam()));
      const Timeline timeline = simulate(chained_schedule(workload, stages, 1));
      EXPECT_NEAR(timeline.makespan, RoundSimulator(workload).makespan(stages), 1e-6);
      EXPECT_NEAR(timeline.busy, busy_ms(workload, stages), 1e-6);
      EXPECT_GE(timeline.makespan, lower_bound_ms(workload, stages));
    }
  }
}

// Returns the time at which the last GPU has finished the tasks up to `step`.
double end_of(const TaskGraph& graph, const Timeline& timeline, int step) {
  double end = 0;
  for (std::size_t task = 0; task < graph.tasks.size(); ++task) {
    if (graph.tasks[task].step <= step) end = std::max(end, timeline.end[task]);
  }
  return end;
}

TEST_P(GoldenSchedules, TheGraphOfChainedStepsHasTheirPeriod) {
  for (const int round_microbatches : {8, 16}) {
    Workload workload = GetParam().workload;
    workload.round_microbatches = round_microbatches;
    const std::vector<StageWork> stages = stage_works(workload, golden_plan(GetParam()));
    const TaskGraph graph = chained_schedule(workload, stages, 10);
    const Timeline timeline = simulate(graph);
    EXPECT_NEAR((end_of(graph, timeline, 10) - end_of(graph, timeline, 4)) / 6,
                RoundSimulator(workload).period(stages, 4, 10), 1e-6);
  }
}

TEST_P(GoldenSchedules, AreSimulatedInLessThanTenMilliseconds) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer makes the simulator slower";
  const GoldenModel& golden = GetParam();
  // Processor time, since other tests run at the same time.
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
  };
  const auto milliseconds = [&now](auto&& work) {
    const double start = now();
    work();
    return now() - start;
  };
  EXPECT_LT(milliseconds([&] { (void)makespan(BoundSchedule::kInterleaved, golden.looped); }), 10);
  EXPECT_LT(milliseconds([&] {
              (void)RoundSimulator(golden.workload).period(stage_works(golden.workload, golden_plan(golden)));
            }),
            10);
}

// Returns a plan for a random workload.
std::pair<Workload, std::vector<StageWork>> random_stages(std::uint64_t seed, bool asynchronous) {
  PlanTask task = random_task(seed);
  task.asynchronous = asynchronous;
  PlanSearch search(task, seed);
  search.run(1);
  const PlanChoice choice = search.best();
  Workload workload = task.workload;
  workload.round_microbatches = choice.round_microbatches;
  return {workload, stage_works(workload, choice.plan)};
}

// RoundSimulator computes the ends of a slot's microbatches only, so nothing between them may
// matter.
TEST(RoundSchedule, ASlotAsAWholeHasTheTimesOfItsTasks) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const auto [workload, stages] = random_stages(seed, /*asynchronous=*/false);
    const Timeline timeline = simulate(chained_schedule(workload, stages, 1));
    EXPECT_NEAR(timeline.makespan, RoundSimulator(workload).makespan(stages), 1e-9 * timeline.makespan)
        << "seed " << seed;
  }
}

// Small models on many GPUs, whose steps wait for updates.
TEST(RoundSchedule, ChainedStepsAsAWholeHaveTheTimesOfTheirTasks) {
  int num_waiting = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const auto [workload, stages] = random_stages(seed, /*asynchronous=*/true);
    TaskGraph graph = chained_schedule(workload, stages, 7);
    const Timeline timeline = simulate(graph);
    const double period = (end_of(graph, timeline, 7) - end_of(graph, timeline, 3)) / 4;
    EXPECT_NEAR(period, RoundSimulator(workload).period(stages, 3, 7), 1e-9 * timeline.makespan) << "seed " << seed;
    for (SimulatedTask& each : graph.tasks) each.after.clear();
    num_waiting += simulate(graph).makespan < timeline.makespan;
  }
  EXPECT_GT(num_waiting, 20) << "updates that no task waits for show nothing";
}

TEST(RoundSchedule, OfTheRuntimeIsLongerThanPublishedWhereTheFusedStageWaitsForItsInput) {
  GoldenModel golden = golden_models().back();
  golden.workload.fused_waits = true;
  EXPECT_NEAR(RoundSimulator(golden.workload).makespan(stage_works(golden.workload, golden_plan(golden))), 24042.8338,
              kFourDecimals);
}

TEST(Simulator, ATaskOnAnotherGpuWaitsForAHopAndItsLeadDoesNot) {
  TaskGraph graph;
  graph.order.resize(2);
  graph.hop = 3;
  const int first = graph.append({.gpu = 0, .work = 10});
  const int near = graph.append({.gpu = 0, .work = 1, .input = first});
  const int far = graph.append({.gpu = 1, .lead = 5, .work = 1, .input = first});
  const Timeline timeline = simulate(graph);
  EXPECT_EQ(timeline.start[near], 10);
  EXPECT_EQ(timeline.start[far], 8) << "13, less what it does while it waits";
  EXPECT_EQ(timeline.makespan, 14);
  EXPECT_EQ(timeline.busy, 17);
}

TEST(Simulator, ATaskBehindAnotherBeginsItsLeadAfterItAndWithoutAHop) {
  TaskGraph graph;
  graph.order.resize(2);
  graph.hop = 3;
  const int first = graph.append({.gpu = 0, .work = 10});
  const int second = graph.append({.gpu = 1, .lead = 5, .work = 1, .after = {first}});
  EXPECT_EQ(simulate(graph).start[second], 10);
}

TEST(Simulator, OrdersThatWaitForEachOtherAreAnError) {
  TaskGraph graph;
  graph.order.resize(2);
  const int a = graph.append({.gpu = 0, .stage = 4, .microbatch = 2, .work = 1});
  const int b = graph.append({.gpu = 1, .work = 1, .input = a});
  graph.tasks[a].input = b;
  expect_error(ExitCode::kUsage, {"waits for itself", "GPU 0", "stage 4, microbatch 2"},
               [&] { (void)simulate(graph); });
}

TEST(BoundSchedules, StagesThatAreNotTheModelsAreRefused) {
  const Workload workload = golden_workload(4, {1, 2}, {1, 1}, 0);
  const auto refused = [&](BoundSchedule schedule, std::vector<int> stages, std::vector<std::string> parts) {
    expect_error(ExitCode::kUsage, parts, [&] { (void)bound_schedule(schedule, workload, stages); });
  };
  refused(BoundSchedule::kGPipe, {1, 1, 1, 1, 1, 1, 1, 1}, {"8 layers together, the model has 4"});
  refused(BoundSchedule::k1F1B, {2, 2}, {"2 stages; 8 are needed"});
  refused(BoundSchedule::kLoopedBfs, {1, 1, 1, 1}, {"4 stages; a multiple of 8"});
  refused(BoundSchedule::kGPipe, {1, 0, 3}, {"stage 1 has 0 layers"});
}

}  // namespace
}  // namespace rp::test
