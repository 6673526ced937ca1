#include "scheduler/planner.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/common/expect_refusal.h"
#include "tests/scheduler/golden_schedules.h"

namespace rp::test {
namespace {

constexpr std::uint64_t kTasks = 60'000'000;  // a sixth of a second

// The best that was known for the inputs of the golden tables.
struct Record {
  double makespan;
  double period;
};
const std::map<std::string, Record> kRecords = {{"1.7b", {2193.3985, 1862.5365}}, {"8b", {6100.5450, 5155.1342}}, {"32b", {23770.7854, 22288.2424}}};

PlanTask task_of(const GoldenModel& model, bool asynchronous) {
  return {.workload = model.workload, .round_choices = {8, 16}, .asynchronous = asynchronous};
}

PlanChoice found(const PlanTask& task, std::uint64_t num_tasks) {
  PlanSearch search(task);
  search.run(num_tasks);
  return search.best();
}

TEST(Planner, FindsPlansAtLeastAsGoodAsTheBestKnownOnes) {
  for (const GoldenModel& model : golden_models()) {
    for (const bool asynchronous : {false, true}) {
      const PlanTask task = task_of(model, asynchronous);
      const PlanChoice choice = found(task, kTasks);
      const Record& record = kRecords.at(model.name);
      EXPECT_LE(choice.step_ms, (asynchronous ? record.period : record.makespan) + 0.001) << model.name;
      EXPECT_GE(choice.step_ms, choice.lower_bound_ms - 1e-6);
      const int num_layers = model.workload.num_layers() + 1;
      EXPECT_NO_THROW(validate_plan(choice.plan, num_layers));
      EXPECT_GE(choice.plan.fused_start, num_layers - 3) << "at most two layers beside the head";
      Workload workload = task.workload;
      workload.round_microbatches = choice.round_microbatches;
      const std::vector<StageWork> stages = stage_works(workload, choice.plan);
      RoundSimulator simulator(workload);
      EXPECT_NEAR(asynchronous ? simulator.period(stages) : simulator.makespan(stages), choice.step_ms, 1e-6);
    }
  }
}

TEST(Planner, IsDeterministic) {
  const PlanTask task = task_of(golden_models().front(), false);
  const PlanChoice a = found(task, 2'000'000), b = found(task, 2'000'000);
  EXPECT_EQ(a.plan, b.plan);
  EXPECT_EQ(a.step_ms, b.step_ms);
}

TEST(Planner, KeepsTheLimitOfAStagesWeights) {
  for (const bool asynchronous : {false, true}) {
    PlanTask task = task_of(golden_models().front(), asynchronous);
    task.bytes.assign(29, 10);
    task.bytes[4] = 50;  // larger than any stage may be
    task.max_stage_bytes = 25;
    const Plan plan = found(task, 2'000'000).plan;
    for (const auto* stages : {&plan.forward, &plan.backward}) {
      for (const LayerRange& range : *stages) {
        const bool has_large = range.first <= 4 && 4 < range.end;
        EXPECT_LE(range.end - range.first, has_large ? 1 : 2) << plan_text(plan, 29);
      }
    }
  }
}

TEST(Planner, CutsModelsOfOneLayerAndOneGpu) {
  for (const bool asynchronous : {false, true}) {
    for (const int num_layers : {0, 1, 2}) {
      PlanTask task{.workload = golden_workload(num_layers, {1, 2}, {1, 1}, 0.5), .round_choices = {16}, .asynchronous = asynchronous};
      task.workload.num_gpus = 1;
      const PlanChoice choice = found(task, 100'000);
      EXPECT_NO_THROW(validate_plan(choice.plan, num_layers + 1));
      EXPECT_NEAR(choice.step_ms, 16 * (2 + 3 * num_layers), 1e-6) << "all fused: no recompute";
    }
  }
}

TEST(Planner, RefusesRoundsThatDoNotMakeAStep) {
  PlanTask task = task_of(golden_models().front(), false);
  task.round_choices = {6};
  expect_error(ExitCode::kUsage, {"rounds of 6 microbatches do not make a step of 16"}, [&] { const PlanSearch search(task); });
  task.round_choices = {};
  expect_error(ExitCode::kUsage, {"needs a number of microbatches"}, [&] { const PlanSearch search(task); });
  task.round_choices = {8};
  task.bytes = {1, 2};
  expect_error(ExitCode::kUsage, {"2 sizes of weights for 29 layers"}, [&] { const PlanSearch search(task); });
}

}  // namespace
}  // namespace rp::test
