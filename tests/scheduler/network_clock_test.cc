#include "scheduler/network_clock.h"

#include <gtest/gtest.h>

#include "scheduler/planner.h"
#include "scheduler/simulation/predicted_machine.h"
#include "scheduler/simulation/run_simulator.h"
#include "tests/common/expect_refusal.h"
#include "tests/scheduler/golden_schedules.h"

namespace rp::test {
namespace {

// Three layers, of which the first is frozen, with gradients of 4 ms and weights of 3 ms.
PlanNetwork three_layers() { return {.layers = {{0, 0}, {4, 3}, {4, 3}}, .latency = 0.5}; }

TEST(NetworkClock, MovesGradientsInTheirOrderAndThenTheWeightsOfTheFirstLayersFirst) {
  NetworkClock clock(three_layers(), false);
  for (int time = 0; time < 2; ++time) {
    clock.restart();
    clock.commit({1, 3}, 10, true);  // layer 2 from 10 to 14, layer 1 from 14 to 18
    // Layer 1 is updated at 18.5 and moves until 21.5, layer 2 until 24.5.
    EXPECT_EQ(clock.end_step(), (std::vector<double>{0, 22, 25}));
  }
  clock.commit({1, 3}, 20, true);  // the link is free from 24.5 on
  EXPECT_EQ(clock.end_step(), (std::vector<double>{0, 36.5, 39.5}));
}

TEST(NetworkClock, AGradientInterruptsWeights) {
  NetworkClock clock(three_layers(), false);
  clock.commit({2, 3}, 10, true);  // until 14; its weights from 14.5 on
  clock.commit({0, 2}, 16, true);  // from 16 to 20; its weights from 20.5 to 23.5, then the last 1.5 ms of the others
  EXPECT_EQ(clock.end_step(), (std::vector<double>{0, 24, 25.5}));
}

TEST(NetworkClock, WeightsFollowTheLastRound) {
  NetworkClock clock(three_layers(), false);
  clock.commit({1, 3}, 10, false);
  clock.commit({1, 3}, 11, true);  // from 18 to 26
  EXPECT_EQ(clock.end_step(), (std::vector<double>{0, 30, 33}));
}

TEST(NetworkClock, AnAsynchronousStepUsesTheWeightsOfTheOneBeforeTheLast) {
  NetworkClock clock(three_layers(), true);
  clock.commit({1, 3}, 10, true);
  EXPECT_EQ(clock.end_step(), (std::vector<double>{0, 0, 0})) << "the second step has the first weights";
  clock.commit({1, 3}, 20, true);  // after 1.5 ms of layer 1's weights, until 28; then the other 1.5 ms, and layer 2's
  EXPECT_EQ(clock.end_step(), (std::vector<double>{0, 30, 33}));
  clock.commit({1, 3}, 100, true);
  EXPECT_EQ(clock.end_step(), (std::vector<double>{0, 36, 39})) << "they had the link for themselves";
}

PlanTask golden_task(const GoldenModel& model, bool asynchronous) {
  return {.workload = model.workload,
          .round_choices = {model.workload.num_microbatches},
          .asynchronous = asynchronous,
          .limits = {.least_fused_start = model.workload.num_layers() - 2}};
}

// The first of two nodes, with a network that moves data for `share` of the time in which its GPUs compute. Links
// within a node take no time.
RunWork first_node(const PlanTask& task, double share) {
  RunWork work{.workload = task.workload, .asynchronous = task.asynchronous};
  work.workload.round_microbatches = task.round_choices.front();
  double bytes = 0, compute_ms = 0;
  for (int layer = 0; layer <= work.workload.num_layers(); ++layer) {
    const double length = 1000 + 100 * (layer % 4);
    work.layers.push_back({.gradient = length, .updated = length});
    bytes += length;  // half of the gradient and half of the weights
    const bool is_head = layer == work.workload.num_layers();
    const LayerWork& time = is_head ? work.workload.head : work.workload.layers[static_cast<std::size_t>(layer)];
    compute_ms += (is_head ? 1 : 2) * time.forward + time.backward;
  }
  compute_ms *= static_cast<double>(work.workload.num_microbatches) / work.workload.num_gpus;
  work.nodes = {.num_nodes = 2, .network = bytes / (share * compute_ms), .network_latency = 0.07};
  return work;
}

double ms_of_run(const RunWork& work, const Plan& plan) {
  return simulate_run(work, stage_works(work.workload, plan), {.warm_up = 20, .steps = 20}).step_ms;
}

TEST(PlanNetwork, OfOneNodeOrOfMessagesThatTakeNoTimeIsEmpty) {
  const std::vector<LayerBytes> layers(3, {.gradient = 2e6, .updated = 1e6});
  EXPECT_TRUE(plan_network(layers, {.num_nodes = 1, .network = 10}).layers.empty());
  EXPECT_TRUE(plan_network(layers, {.num_nodes = 4}).layers.empty());
  const PlanNetwork network = plan_network(layers, {.num_nodes = 4, .network = 1e6, .network_latency = 0.5});
  ASSERT_EQ(network.layers.size(), 3U);
  EXPECT_DOUBLE_EQ(network.layers[2].gradient, 1.5);
  EXPECT_DOUBLE_EQ(network.layers[2].weights, 0.75);
  EXPECT_EQ(network.latency, 0.5);
}

TEST(PlanNetwork, GivesTheStepsOfTheSimulatedRun) {
  for (const GoldenModel& model : golden_models()) {
    for (const bool asynchronous : {false, true}) {
      PlanTask task = golden_task(model, asynchronous);
      const Plan plan = fast_plan(task).plan;
      for (const double share : {0.2, 0.5, 0.8, 1.5}) {
        SCOPED_TRACE(testing::Message() << model.name << (asynchronous ? ", asynchronous, " : ", ") << share);
        const RunWork work = first_node(task, share);
        NetworkClock clock(plan_network(work.layers, work.nodes), asynchronous);
        RoundSimulator simulator(work.workload);
        const std::vector<StageWork> stages = stage_works(work.workload, plan);
        const double run_ms = ms_of_run(work, plan);
        EXPECT_NEAR(simulator.period(stages, clock, 20, 40), run_ms, 0.01 * run_ms);
      }
    }
  }
}

TEST(PlanNetwork, MakesThePlanNoWorseAndOftenBetter) {
  int num_better = 0, num_all = 0;
  for (const GoldenModel& model : golden_models()) {
    for (const bool asynchronous : {false, true}) {
      const PlanTask without = golden_task(model, asynchronous);
      for (const double share : {0.5, 0.8, 1.0}) {
        SCOPED_TRACE(testing::Message() << model.name << (asynchronous ? ", asynchronous, " : ", ") << share);
        const RunWork work = first_node(without, share);
        RunWork alone = work;
        alone.nodes = {};
        PlanTask with = without;
        with.network = plan_network(work.layers, work.nodes);
        const PlanChoice choice = fast_plan(with);
        const Plan plan = fast_plan(without).plan;
        const double with_ms = ms_of_run(work, choice.plan), without_ms = ms_of_run(work, plan);
        EXPECT_NEAR(choice.step_ms, with_ms, 0.01 * with_ms);
        EXPECT_LE(with_ms, 1.01 * without_ms);
        EXPECT_LE(with_ms - ms_of_run(alone, choice.plan), without_ms - ms_of_run(alone, plan) + 0.01 * without_ms)
            << "what is exposed of the network";
        num_better += with_ms < 0.99 * without_ms ? 1 : 0;
        ++num_all;
      }
    }
  }
  EXPECT_GE(num_better, num_all / 4);
}

TEST(PlanNetwork, OfAnotherModelIsRefused) {
  PlanTask task = golden_task(golden_models().front(), false);
  task.network.layers.resize(3);
  expect_error(ExitCode::kUsage, {"messages of 3 layers, for "}, [&] { (void)fast_plan(task); });
}

}  // namespace
}  // namespace rp::test
