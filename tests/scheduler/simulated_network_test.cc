#include "scheduler/simulation/simulated_network.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "scheduler/simulation/run_simulator.h"
#include "tests/scheduler/random_tasks.h"

namespace rp {
namespace {

constexpr RunLength kLength{.warm_up = 3, .steps = 4, .record = true};

// Two GPUs, steps of `rounds` own rounds of two microbatches; three layers and a head, of which the
// first layer is frozen.
RunWork run_with(int rounds) {
  RunWork work{.workload = {.num_gpus = 2,
                            .num_microbatches = 2 * rounds,
                            .round_microbatches = 2,
                            .layers = {{10, 20}, {10, 20}, {10, 20}},
                            .head = {10, 20},
                            .first_trained_layer = 1}};
  work.layers.assign(4,
                     {.weights = 1000, .gradient = 1000, .update = 14000, .sum = 5000, .updated = 900, .input = 100});
  work.layers[0].gradient = work.layers[0].update = work.layers[0].sum = work.layers[0].updated = 0;
  return work;
}
Plan plan() { return {.forward = {{0, 2}, {2, 3}}, .fused_start = 3, .backward = {{2, 3}, {1, 2}}}; }

RunResult simulated(const RunWork& work, const RunLength& length = kLength) {
  return simulate_run(work, stage_works(work.workload, plan()), length);
}

TEST(SimulatedNetwork, ThatTakesNoTimeLeavesTheStepOfOneNodeWithItsOwnRounds) {
  for (const bool asynchronous : {false, true}) {
    for (const int rounds : {1, 2, 3}) {
      RunWork work = run_with(rounds);
      work.asynchronous = asynchronous;
      work.machine = {.upload = 500, .download = 400, .copy_latency = 0.01};
      const RunResult alone = simulated(work);
      EXPECT_EQ(alone.sent_bytes + alone.received_bytes, 0);
      for (const int nodes : {2, 7, 1000}) {
        work.nodes = {.num_nodes = nodes};
        EXPECT_NEAR(simulated(work).step_ms, alone.step_ms, 1e-9 * alone.step_ms) << nodes << " nodes";
      }
    }
  }
}

TEST(SimulatedNetwork, MovesTheBytesOfTheFormula) {
  constexpr double kGradients = 3 * 1000, kUpdated = 3 * 900;
  for (const bool asynchronous : {false, true}) {
    for (const int own : {1, 2}) {
      for (const int nodes : {2, 4, 64}) {
        RunWork work = run_with(own);
        work.asynchronous = asynchronous;
        for (const int num_rounds : {own * nodes, (own - 1) * nodes + 1}) {
          work.nodes = {.num_nodes = nodes, .rounds_per_step = num_rounds, .network = 200, .network_latency = 0.1};
          if (num_rounds < nodes) continue;
          const RunResult result = simulated(work);
          const double others = static_cast<double>(nodes - 1) / nodes;
          const double sent = own * kGradients * others + kUpdated * others;
          const double received = (num_rounds - own) * kGradients / nodes + kUpdated * others;
          // A transfer at the border of the counted time counts in part.
          EXPECT_NEAR(result.sent_bytes, sent, 0.02 * sent);
          EXPECT_NEAR(result.received_bytes, received, 0.02 * received);
          std::map<SpanKind, double> of_a_step;
          for (const RunSpan& span : result.spans) {
            if (span.step == kLength.warm_up + 1) of_a_step[span.kind] += span.bytes;
          }
          EXPECT_NEAR(of_a_step[SpanKind::kSendGradient], own * kGradients * others, 1e-6);
          EXPECT_NEAR(of_a_step[SpanKind::kReceiveGradient], (num_rounds - own) * kGradients / nodes, 1e-6);
          EXPECT_NEAR(of_a_step[SpanKind::kSendWeights], kUpdated * others, 1e-6);
          EXPECT_NEAR(of_a_step[SpanKind::kReceiveWeights], kUpdated * others, 1e-6);
        }
      }
    }
  }
}

TEST(SimulatedNetwork, AStepTakesAtLeastTheTimeOfItsBytesAndASlowNetworkIsTheLimit) {
  for (const bool asynchronous : {false, true}) {
    RunWork work = run_with(2);
    work.asynchronous = asynchronous;
    const double alone = simulated(work).step_ms;
    double slower = 1e300;
    for (const double rate : {1.0, 5.0, 20.0, 100.0, 1000.0}) {
      work.nodes = {.num_nodes = 4, .network = rate};
      const RunResult result = simulated(work, {.warm_up = 40, .steps = 40});
      const double bytes = 3 * (2 * 1000 + 900) * 3.0 / 4;
      EXPECT_GE(result.step_ms * (1 + 1e-9), bytes / rate);
      EXPECT_GE(result.step_ms * (1 + 1e-9), alone);
      EXPECT_LE(result.step_ms, slower * (1 + 1e-9)) << "a faster network is not slower";
      EXPECT_LE(result.sending_ms, result.step_ms * (1 + 1e-9));
      // If the network is busy most of the time, the step is little longer than the bytes need.
      if (rate == 1) {
        EXPECT_LE(result.step_ms, bytes / rate + alone);
      }
      slower = result.step_ms;
    }
    work.nodes = {.num_nodes = 4, .network = 100};
    const double without = simulated(work).step_ms;
    work.nodes.network_latency = 5;
    EXPECT_GT(simulated(work).step_ms, asynchronous ? without * (1 - 1e-9) : without + 5);
  }
}

// The first of four nodes computes two of five rounds: it sends more than it receives, and its
// gradient buffers are free when they are sent.
TEST(SimulatedNetwork, AStepTakesAtLeastTheTimeOfWhatIsSentIfLessIsReceived) {
  for (const bool asynchronous : {false, true}) {
    RunWork work = run_with(2);
    work.asynchronous = asynchronous;
    work.nodes = {.num_nodes = 4, .rounds_per_step = 5, .network = 2};
    const RunResult result = simulated(work, {.warm_up = 40, .steps = 40});
    const double bytes = 3 * (2 * 1000 + 900) * 3.0 / 4;
    EXPECT_GE(result.step_ms * (1 + 1e-9), bytes / 2);
    EXPECT_NEAR(result.sent_bytes, bytes, 1e-3 * bytes) << "no more waits from step to step";
  }
}

TEST(SimulatedNetwork, AsynchronousStepsHideIt) {
  RunWork work = run_with(1);
  work.nodes = {.num_nodes = 4, .network = 100};
  const double without_network = 160;
  const RunResult synchronous = simulated(work);
  work.asynchronous = true;
  const RunResult asynchronous = simulated(work);
  EXPECT_GT(synchronous.step_ms, without_network + 10);
  EXPECT_LT(asynchronous.step_ms, synchronous.step_ms - 10);
}

TEST(SimulatedNetwork, EachPartWaitsForWhatTheDesignSays) {
  RunWork work = run_with(2);
  work.machine = {.upload = 500, .download = 400, .updates = 4000};
  work.nodes = {.num_nodes = 4, .network = 50, .network_latency = 0.5};
  const RunResult result = simulated(work);
  const int step = kLength.warm_up + 1;
  for (const int layer : {1, 2, 3}) {
    std::vector<double> committed, sent, received, update_starts, update_ends;
    double weights_start = 0, weights_end = 0, next_download = 0, next_upload = 1e300;
    for (const RunSpan& span : result.spans) {
      if (span.layer != layer) continue;
      if (span.kind == SpanKind::kUploadWeights && span.step == step + 1)
        next_upload = std::min(next_upload, span.start);
      if (span.step != step) continue;
      if (span.kind == SpanKind::kDownloadGradient) committed.push_back(span.end);
      if (span.kind == SpanKind::kDownloadGradient) next_download = std::max(next_download, span.start);
      if (span.kind == SpanKind::kSendGradient) {
        sent.push_back(span.end);
        EXPECT_GE(span.start, committed[sent.size() - 1]);
      }
      if (span.kind == SpanKind::kReceiveGradient) received.push_back(span.end);
      if (span.kind == SpanKind::kUpdate) {
        update_starts.push_back(span.start);
        update_ends.push_back(span.end);
      }
      if (span.kind == SpanKind::kSendWeights) weights_start = span.start;
      if (span.kind == SpanKind::kReceiveWeights) weights_end = span.end;
    }
    ASSERT_EQ(committed.size(), 2U);
    ASSERT_EQ(sent.size(), 2U);
    ASSERT_EQ(received.size(), 2U);
    ASSERT_EQ(update_starts.size(), 2U);
    for (std::size_t round = 0; round < 2; ++round) EXPECT_GE(update_starts[round], received[round] + 0.5 - 1e-9);
    EXPECT_GE(next_download, std::max(sent[0], update_ends[0]) - 1e-9) << "the buffer is free again";
    EXPECT_GE(weights_start, update_ends[1] - 1e-9);
    EXPECT_GE(next_upload, weights_end + 0.5 - 1e-9) << "the next step has the parts of all owners";
  }
}

TEST(SimulatedNetwork, ANodeAddsAndUpdatesItsShare) {
  for (const int nodes : {1, 2, 5}) {
    RunWork work = run_with(2);
    work.machine.updates = 100;
    work.nodes = {.num_nodes = nodes};
    const RunResult result = simulated(work);
    // 2 n rounds are added, except the last one, which the update reads at once.
    EXPECT_NEAR(result.update_ms, 3 * ((2 * nodes - 1) * 5000.0 + 14000) / nodes / 100, 0.05 * result.update_ms);
  }
}

TEST(SimulatedNetwork, NoRandomRunWaitsForItself) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    const PlanTask task = test::random_task(seed);
    PlanCost cost(task);
    const Cuts cuts = greedy_cuts(cost.sums(), task.workload.num_gpus, task.limits.least_fused_start);
    RunWork work{.workload = task.workload, .asynchronous = seed % 2 == 0};
    work.workload.round_microbatches = task.round_choices.front();
    work.workload.fused_waits = true;
    work.layers.assign(static_cast<std::size_t>(work.workload.num_layers()) + 1,
                       {.weights = 500, .gradient = 500, .update = 7000, .sum = 2000, .updated = 500, .input = 50});
    work.machine = {.upload = 300, .download = 300, .copy_latency = 0.01, .updates = 5000};
    const std::vector<StageWork> stages = stage_works(work.workload, plan_of(cuts));
    const double alone = simulate_run(work, stages, {.warm_up = 2, .steps = 3}).step_ms;
    work.nodes = {.num_nodes = 3, .network = 100, .network_latency = 0.05};
    const double with_network = simulate_run(work, stages, {.warm_up = 2, .steps = 3}).step_ms;
    EXPECT_GT(with_network, 0.9 * alone) << "only updates are shorter";
  }
}

}  // namespace
}  // namespace rp
