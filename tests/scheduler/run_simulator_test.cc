#include "scheduler/simulation/run_simulator.h"

#include <gtest/gtest.h>

#include <random>
#include <tuple>
#include <utility>

#include "scheduler/simulation/fair_share.h"
#include "tests/scheduler/golden_schedules.h"
#include "tests/scheduler/random_tasks.h"

namespace rp {
namespace {

using test::golden_models;
using test::golden_plan;
using test::GoldenModel;

double period_of(const RunWork& work, const std::vector<StageWork>& stages) {
  RunWork chained = work;
  chained.asynchronous = true;
  return simulate_run(chained, stages, {.warm_up = 40, .steps = 160}).step_ms;
}

RunWork run_of(const GoldenModel& golden, int round_microbatches) {
  RunWork work{.workload = golden.workload};
  work.workload.fused_waits = true;
  work.workload.round_microbatches = round_microbatches;
  work.workload.hop = 0;
  return work;
}

TEST(RunSimulator, WithLinksThatTakeNoTimeGivesTheStepOfTheSchedule) {
  for (const GoldenModel& golden : golden_models()) {
    SCOPED_TRACE(golden.name);
    using enum RecomputeGrain;
    for (const auto& [round, recompute] : {std::pair{8, kStage}, {16, kStage}, {8, kLayer}, {16, kLayer}}) {
      RunWork work = run_of(golden, round);
      work.workload.recompute = recompute;
      const std::vector<StageWork> stages = stage_works(work.workload, golden_plan(golden));
      RoundSimulator schedule(work.workload);
      EXPECT_NEAR(simulate_run(work, stages, {.warm_up = 0, .steps = 1}).step_ms, schedule.makespan(stages), 1e-6);
      EXPECT_NEAR(period_of(work, stages), schedule.period(stages), 1e-6);
    }
  }
}

TEST(RunSimulator, ACopyDownAndOneUpIsAHop) {
  for (const GoldenModel& golden : golden_models()) {
    SCOPED_TRACE(golden.name);
    RunWork work = run_of(golden, 8);
    work.machine.copy_latency = golden.workload.hop / 2;
    const std::vector<StageWork> stages = stage_works(work.workload, golden_plan(golden));
    const double step = simulate_run(work, stages, {.warm_up = 0, .steps = 1}).step_ms;
    const double period = period_of(work, stages);
    work.workload.hop = golden.workload.hop;
    RoundSimulator schedule(work.workload);
    EXPECT_NEAR(step, schedule.makespan(stages) + work.machine.copy_latency, 1e-6)
        << "the first input has to come, too";
    // An update is published one copy later than its task ends, which the schedule by itself does
    // not include.
    EXPECT_NEAR(period, schedule.period(stages), 0.001 * period);
  }
}

TEST(RunSimulator, AgreesWithTheScheduleOnRandomWorkloads) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    PlanTask task = test::random_task(seed);
    task.workload.recompute = seed % 2 == 0 ? RecomputeGrain::kStage : RecomputeGrain::kLayer;
    PlanCost cost(task);
    const Cuts cuts = greedy_cuts(cost.sums(), task.workload.num_gpus, task.limits.least_fused_start);
    RunWork work{.workload = task.workload};
    work.workload.round_microbatches = task.round_choices.front();
    work.workload.fused_waits = true;
    work.workload.hop = 0;
    const std::vector<StageWork> stages = stage_works(work.workload, plan_of(cuts));
    RoundSimulator schedule(work.workload);
    const double step = simulate_run(work, stages, {.warm_up = 0, .steps = 1}).step_ms;
    // A run has at most two rounds in flight; with fewer stages than GPUs that is less than the
    // schedule allows.
    const bool has_few_stages = static_cast<int>(stages.size()) < work.workload.num_gpus;
    EXPECT_GE(step * (1 + 1e-9), schedule.makespan(stages));
    EXPECT_TRUE(has_few_stages || step <= schedule.makespan(stages) * (1 + 1e-9));
    work.asynchronous = true;
    const RunResult chained = simulate_run(work, stages, {.warm_up = 8, .steps = 24});
    EXPECT_NEAR(chained.gpus.total(), work.workload.num_gpus * chained.step_ms, 1e-6 * chained.gpus.total());
    EXPECT_GE(chained.step_ms * (1 + 1e-9), busy_ms_per_gpu(work.workload, stages));
  }
}

// Two GPUs, one round of two microbatches; two layers and a head of 10 ms forward and 20 ms backward each.
RunWork small_run() {
  RunWork work{.workload = {.num_gpus = 2,
                            .num_microbatches = 2,
                            .round_microbatches = 2,
                            .layers = {{10, 20}, {10, 20}},
                            .head = {10, 20}}};
  work.layers.assign(3, {.weights = 1000, .gradient = 1000, .update = 14000, .sum = 5000, .input = 100});
  return work;
}
Plan small_plan() { return {.forward = {{0, 2}}, .fused_start = 2, .backward = {{0, 2}}}; }

TEST(RunSimulator, AccountsForEachMillisecondOfAStep) {
  // Computed by hand: forward 0-20, 20-40; fused 20-50, 50-80; backward: recompute 40-60, then 20 +
  // 40 for each microbatch.
  const RunWork work = small_run();
  const std::vector<StageWork> stages = stage_works(work.workload, small_plan());
  const RunResult result = simulate_run(work, stages, {.warm_up = 1, .steps = 2});
  EXPECT_DOUBLE_EQ(result.step_ms, 160);
  EXPECT_DOUBLE_EQ(result.gpus.busy, 40 + 60 + 120);
  EXPECT_DOUBLE_EQ(result.gpus.bubble, 2 * 160 - 220);
  EXPECT_DOUBLE_EQ(result.gpus.transfers(), 0);
  // Weights of layers 0 and 1 twice and of the head once; boundary 2 down and up; its gradient down
  // and up. The batch itself is an input, too.
  EXPECT_DOUBLE_EQ(result.downloaded_bytes, 3000 + 2 * 200);
  EXPECT_DOUBLE_EQ(result.uploaded_bytes, 5000 + 2 * (200 + 200));
  EXPECT_DOUBLE_EQ(result.peak_activation_bytes, 2 * 200);
}

// As small_run(), with three layers. The head takes so long that its gradient is late.
RunWork late_gradients(RecomputeGrain recompute) {
  RunWork work{.workload = {.num_gpus = 2,
                            .num_microbatches = 2,
                            .round_microbatches = 2,
                            .layers = {{10, 20}, {10, 20}, {10, 20}},
                            .head = {10, 100},
                            .recompute = recompute}};
  work.layers.assign(4, {.weights = 1000, .gradient = 1000, .update = 14000, .sum = 5000, .input = 100});
  return work;
}
Plan two_forward_stages() { return {.forward = {{0, 1}, {1, 3}}, .fused_start = 3, .backward = {{0, 3}}}; }

// Computed by hand: forward 0-20 and 10-50; fused 30-140, 140-250. By stage: recompute 50-80,
// backward 140-200, recompute until 230, backward 250-310. By layer, the last layer is recomputed
// before the gradient arrives, the others after it: 140-220 and 250-330.
TEST(RunSimulator, ByLayerOnlyTheLastLayerIsRecomputedBeforeTheGradient) {
  for (const auto& [recompute, step_ms, lead_ms] :
       {std::tuple{RecomputeGrain::kStage, 310.0, 30.0}, {RecomputeGrain::kLayer, 330.0, 10.0}}) {
    const RunWork work = late_gradients(recompute);
    const RunResult result = simulate_run(work, stage_works(work.workload, two_forward_stages()),
                                          {.warm_up = 1, .steps = 2, .record = true});
    EXPECT_DOUBLE_EQ(result.step_ms, step_ms);
    EXPECT_DOUBLE_EQ(result.gpus.busy, 2 * (10 + 20 + 110 + 90)) << "no more is computed";
    for (const RunSpan& span : result.spans) {
      if (span.kind != SpanKind::kRecompute) continue;
      EXPECT_NEAR(span.end - span.start, lead_ms, 1e-9);
    }
  }
}

TEST(RunSimulator, ByLayerTheInputsOfAllLayersGoToTheHostAndBack) {
  const auto simulated = [](RecomputeGrain recompute) {
    const RunWork work = late_gradients(recompute);
    return simulate_run(work, stage_works(work.workload, two_forward_stages()),
                        {.warm_up = 1, .steps = 2, .record = true});
  };
  const RunResult by_stage = simulated(RecomputeGrain::kStage), by_layer = simulated(RecomputeGrain::kLayer);
  // For a microbatch: boundaries 1 and 3 and the gradient at 3, and by layer also boundary 2.
  EXPECT_DOUBLE_EQ(by_stage.downloaded_bytes, 4000 + 2 * 300);
  EXPECT_DOUBLE_EQ(by_layer.downloaded_bytes, 4000 + 2 * 400);
  // By stage: the batch twice, boundaries 1 and 3, and the gradient. By layer: boundaries 1 and 2
  // in addition.
  EXPECT_DOUBLE_EQ(by_stage.uploaded_bytes, 7000 + 2 * 500);
  EXPECT_DOUBLE_EQ(by_layer.uploaded_bytes, 7000 + 2 * 700);
  // At the end of the fused stage: boundary 3 and its gradient, and by layer boundaries 1 and 2,
  // which no slot has freed yet.
  EXPECT_DOUBLE_EQ(by_stage.peak_activation_bytes, 2 * 200);
  EXPECT_DOUBLE_EQ(by_layer.peak_activation_bytes, 2 * 400);
  EXPECT_DOUBLE_EQ(by_layer.memory.back().activation_bytes, 0);
}

TEST(RunSimulator, ByLayerARecomputeWaitsForTheInputsOfAllLayersAndTheGradientComesLast) {
  RunWork work = late_gradients(RecomputeGrain::kLayer);
  work.machine = {.upload = 100, .copy_latency = 0.5};  // an input takes 1 ms
  const RunResult result =
      simulate_run(work, stage_works(work.workload, two_forward_stages()), {.warm_up = 0, .steps = 1, .record = true});
  for (const int microbatch : {0, 1}) {
    std::vector<double> uploads;
    double recompute = 0, backward = 0;
    for (const RunSpan& span : result.spans) {
      if (span.step > 0 || span.phase != TaskKind::kBackward || span.microbatch != microbatch) continue;
      if (span.kind == SpanKind::kUploadInput) uploads.push_back(span.end);
      if (span.kind == SpanKind::kRecompute) recompute = span.start;
      if (span.kind == SpanKind::kCompute) backward = span.start;
    }
    ASSERT_EQ(uploads.size(), 4U) << "the batch, boundaries 1 and 2 of two forward stages, the gradient";
    EXPECT_GE(recompute, uploads[2] + 0.5);
    EXPECT_LT(recompute, uploads[3]);
    EXPECT_GE(backward, uploads[3] + 0.5);
  }
}

// So everything that fits the GPU and the host by layer in stages of one layer also fits by stage.
TEST(RunSimulator, StagesOfOneLayerAreTheSameByStageAndByLayer) {
  const Plan plan{.forward = {{0, 1}, {1, 2}, {2, 3}}, .fused_start = 3, .backward = {{2, 3}, {1, 2}, {0, 1}}};
  std::vector<RunResult> results;
  for (const RecomputeGrain recompute : {RecomputeGrain::kStage, RecomputeGrain::kLayer}) {
    RunWork work = late_gradients(recompute);
    work.machine = {.upload = 200, .download = 150, .copy_latency = 0.1, .updates = 3000};
    results.push_back(simulate_run(work, stage_works(work.workload, plan)));
  }
  EXPECT_EQ(results[0].step_ends, results[1].step_ends);
  EXPECT_EQ(results[0].uploaded_bytes, results[1].uploaded_bytes);
  EXPECT_EQ(results[0].downloaded_bytes, results[1].downloaded_bytes);
  EXPECT_EQ(results[0].peak_activation_bytes, results[1].peak_activation_bytes);
}

TEST(RunSimulator, ReportsWhatAGpuWaitedFor) {
  RunWork work = small_run();
  const std::vector<StageWork> stages = stage_works(work.workload, small_plan());
  const double alone = simulate_run(work, stages, {.warm_up = 4, .steps = 4}).step_ms;

  RunWork slow_upload = work;
  slow_upload.machine.upload = 5;  // bytes per ms: 2000 bytes take 400 ms
  const RunResult weights = simulate_run(slow_upload, stages, {.warm_up = 4, .steps = 4});
  EXPECT_GT(weights.gpus.weights, 0.5 * (weights.step_ms - alone));
  EXPECT_DOUBLE_EQ(weights.gpus.updates, 0);

  RunWork slow_update = work;
  slow_update.machine.updates = 100;  // 140 ms per layer
  const RunResult updates = simulate_run(slow_update, stages, {.warm_up = 4, .steps = 4});
  EXPECT_GT(updates.gpus.updates, 0.5 * (updates.step_ms - alone));
  EXPECT_NEAR(updates.update_ms, 3 * 140, 1e-6);
  EXPECT_DOUBLE_EQ(updates.gpus.weights, 0);

  RunWork slow_download = work;
  slow_download.machine.download = 5;
  const RunResult gradients = simulate_run(slow_download, stages, {.warm_up = 4, .steps = 4});
  EXPECT_GT(gradients.step_ms, 2 * alone);
  for (const RunResult& result : {weights, updates, gradients}) {
    EXPECT_NEAR(result.gpus.total(), 2 * result.step_ms, 1e-6);
  }
}

TEST(RunSimulator, AsynchronousStepsHideTheUpdates) {
  RunWork work = small_run();
  work.machine.updates = 400;  // 35 ms per layer
  const std::vector<StageWork> stages = stage_works(work.workload, small_plan());
  const RunResult synchronous = simulate_run(work, stages);
  work.asynchronous = true;
  const RunResult asynchronous = simulate_run(work, stages);
  EXPECT_GT(synchronous.gpus.updates, 0);
  EXPECT_LT(asynchronous.step_ms, synchronous.step_ms);
}

TEST(RunSimulator, InputsBeforeBulkAreNotLateForMoreThanAPiece) {
  // The weights of the next stage take as long as half a task. If they are one copy, inputs come
  // late.
  RunWork work = small_run();
  work.workload.num_gpus = 1;
  work.asynchronous = true;
  work.machine.upload = 60;
  work.policy.piece = 60;  // 1 ms
  const std::vector<StageWork> stages = stage_works(work.workload, small_plan());
  const RunResult first = simulate_run(work, stages);
  work.policy.weights_yield = false;
  const RunResult fifo = simulate_run(work, stages);
  EXPECT_LT(first.gpus.inputs, 0.5 * fifo.gpus.inputs);
  EXPECT_LT(first.step_ms, fifo.step_ms);
}

TEST(RunSimulator, AtATasksEndInputsAreEnqueuedBeforeTheWeightsOfTheTaskAfterTheNext) {
  RunWork work = small_run();
  work.workload.num_gpus = 1;
  work.asynchronous = true;
  work.machine.upload = 200;  // weights of a layer take 5 ms, less than the 10 ms until the next input's place is free
  work.policy.weights_yield = false;
  const RunResult result =
      simulate_run(work, stage_works(work.workload, small_plan()), {.warm_up = 2, .steps = 4, .record = true});
  int num_inputs = 0;
  for (const RunSpan& input : result.spans) {
    if (input.kind != SpanKind::kUploadInput || input.stage > 0) continue;  // inputs from the batch are always there
    ++num_inputs;
    for (const RunSpan& weights : result.spans) {
      EXPECT_FALSE(weights.kind == SpanKind::kUploadWeights && weights.end == input.start &&
                   weights.end > weights.start)
          << "the input of microbatch " << input.microbatch << " at " << input.start << " ms";
    }
  }
  EXPECT_GT(num_inputs, 0);
}

TEST(RunSimulator, RecordsEveryTaskAndEveryByte) {
  RunWork work = small_run();
  work.machine = {.upload = 1000,
                  .download = 1000,
                  .copy_latency = 0.01,
                  .gpus_per_root = 2,
                  .root_upload = 1500,
                  .root_download = 1500,
                  .host_memory = 2500,
                  .updates = 2000};
  const std::vector<StageWork> stages = stage_works(work.workload, small_plan());
  const RunLength length{.warm_up = 0, .steps = 3, .record = true};
  const RunResult result = simulate_run(work, stages, length);
  int computes = 0, recomputes = 0, updates = 0;
  double uploaded = 0, update_bytes = 0;
  for (const RunSpan& span : result.spans) {
    if (span.step >= 3) continue;
    EXPECT_GE(span.end, span.start);
    computes += span.kind == SpanKind::kCompute;
    recomputes += span.kind == SpanKind::kRecompute;
    updates += span.kind == SpanKind::kUpdate;
    if (span.kind == SpanKind::kUpdate) update_bytes += span.bytes;
    if (span.kind == SpanKind::kUploadWeights) uploaded += span.bytes;
  }
  EXPECT_EQ(computes, 3 * 3 * 2);
  EXPECT_EQ(recomputes, 3 * 2);
  EXPECT_GE(updates, 3 * 2);
  EXPECT_NEAR(uploaded, 3 * 5000, 1e-6);
  EXPECT_NEAR(update_bytes, updates * 14000.0, 1e-6);
  EXPECT_FALSE(result.memory.empty());
}

TEST(FairShare, GivesEachFlowWhatNoOtherNeeds) {
  FairShare share({100, 30});
  std::vector<double> rates;
  share.share({{.limit = 10, .resources = {0, -1, -1}},
               {.limit = 80, .resources = {0, 1, -1}},
               {.limit = 80, .resources = {0, 1, -1}},
               {.limit = 1000, .resources = {0, -1, -1}}},
              rates);
  EXPECT_EQ(rates, (std::vector<double>{10, 15, 15, 60}));
  // One flow uses three times as much of the resource that both pass through.
  share.share({{.limit = 1000, .resources = {0, -1, -1}, .uses = {3, 1, 1}}, {.limit = 1000, .resources = {0, -1, -1}}},
              rates);
  EXPECT_EQ(rates, (std::vector<double>{25, 25}));
}

}  // namespace
}  // namespace rp
