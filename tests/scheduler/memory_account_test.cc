#include "scheduler/simulation/memory_account.h"

#include <gtest/gtest.h>

#include <random>

#include "scheduler/gpu_memory.h"
#include "scheduler/simulation/predicted_machine.h"
#include "scheduler/simulation/run_simulator.h"

namespace rp {
namespace {

LayerCost layer_of_weights(std::uint64_t weights) {
  LayerCost cost;
  cost.weight_bytes = cost.gradient_bytes = weights;
  cost.gradient_elements = cost.trained_elements = weights / 2;
  cost.input_bytes = cost.output_bytes = 100;
  cost.saved_bytes = 700;
  cost.forward_workspace_bytes = 20;
  cost.backward_workspace_bytes = 50;
  return cost;
}

Plan single_layers(int num_body_layers) {
  Plan plan;
  plan.fused_start = num_body_layers;
  for (int layer = 0; layer < num_body_layers; ++layer) plan.forward.push_back({layer, layer + 1});
  for (int layer = num_body_layers; layer-- > 0;) plan.backward.push_back({layer, layer + 1});
  return plan;
}

RunWork run_of(const std::vector<LayerCost>& costs, int num_gpus, int num_microbatches) {
  RunWork work;
  work.workload.num_gpus = num_gpus;
  work.workload.num_microbatches = work.workload.round_microbatches = num_microbatches;
  work.workload.layers.assign(costs.size() - 1, {10, 20});
  work.workload.head = {10, 20};
  work.layers = predicted_bytes(costs, {});
  return work;
}

RunResult recorded(const RunWork& work, const Plan& plan) {
  return simulate_run(work, stage_works(work.workload, plan), {.warm_up = 1, .steps = 2, .record = true});
}

// Returns the contents of a GPU's memory at a time.
GpuMemory at(const RunResult& result, int gpu, double time) {
  GpuMemory bytes;
  for (const GpuMemorySample& sample : result.gpu_memory.at(gpu)) {
    if (sample.time <= time) bytes = sample.bytes;
  }
  return bytes;
}

TEST(MemoryAccount, HasWhatEachMomentOfAStepNeeds) {
  // One GPU, two microbatches, one layer and the head. Copies other than downloads take no time:
  // forward 0-10, 10-20; fused 20-50, 50-80; backward: recompute 80-90, backward 90-110; 110-120,
  // 120-140.
  RunWork work = run_of({layer_of_weights(1000), layer_of_weights(3000)}, 1, 2);
  work.machine.download = 200;  // an output takes 0.5 ms, gradients 5 and 15 ms
  const RunResult result = recorded(work, single_layers(1));
  EXPECT_EQ(at(result, 0, 5), (GpuMemory{.weights = 4000, .inputs = 200, .outputs = 100, .workspace = 20}))
      << "the fused stage's weights are there, too, and the next microbatch";
  EXPECT_EQ(at(result, 0, 10.2).outputs, 200U) << "one is made, one is on its way";
  EXPECT_EQ(at(result, 0, 11).outputs, 100U);
  EXPECT_EQ(
      at(result, 0, 30),
      (GpuMemory{.weights = 4000, .accumulators = 6000, .inputs = 200, .outputs = 100, .saved = 700, .workspace = 50}));
  const GpuMemory recompute = at(result, 0, 85);
  EXPECT_EQ(recompute.saved, 700U);
  EXPECT_EQ(recompute.workspace, 20U);
  EXPECT_EQ(recompute.accumulators, 2000U);
  EXPECT_EQ(recompute.gradients, 3000U) << "the head's are on their way";
  EXPECT_EQ(recompute.outputs, 0U) << "its own does not exist yet";
  const GpuMemory backward = at(result, 0, 100);
  EXPECT_EQ(backward.inputs, 400U) << "two microbatches, each with its gradient";
  EXPECT_EQ(backward.workspace, 50U);
  EXPECT_EQ(backward.gradients, 0U) << "the head's are on the host";
}

TEST(MemoryAccount, IsWithinWhatThePlanReserves) {
  std::mt19937_64 random(5);
  const auto draw = [&](std::uint64_t most) { return std::uniform_int_distribution<std::uint64_t>(1, most)(random); };
  for (int run = 0; run < 100; ++run) {
    SCOPED_TRACE(run);
    std::vector<LayerCost> costs;
    for (std::uint64_t i = 0, count = 3 + draw(12); i < count; ++i) {
      LayerCost& cost = costs.emplace_back(layer_of_weights(2 * draw(2000)));
      cost.saved_bytes = draw(5000);
      cost.backward_workspace_bytes = draw(3000);
      if (draw(4) == 1) cost.gradient_bytes = cost.gradient_elements = cost.trained_elements = 0;
    }
    const int head = static_cast<int>(costs.size()) - 1;
    Plan plan;
    plan.fused_start = head - static_cast<int>(draw(2)) + 1;
    for (int layer = 0, end = 0; layer < plan.fused_start; layer = end) {
      end = std::min(plan.fused_start, layer + static_cast<int>(draw(4)));
      plan.forward.push_back({layer, end});
    }
    for (int layer = plan.fused_start, first = 0; layer > 0; layer = first) {
      first = std::max(0, layer - static_cast<int>(draw(3)));
      plan.backward.push_back({first, layer});
    }
    RunWork work = run_of(costs, 1 + static_cast<int>(draw(3)), 2 + static_cast<int>(draw(6)));
    work.asynchronous = run % 2 == 0;
    work.workload.recompute = run % 4 < 2 ? RecomputeGrain::kStage : RecomputeGrain::kLayer;
    work.machine = {.upload = 50.0 + static_cast<double>(draw(500)),
                    .download = 50.0 + static_cast<double>(draw(500)),
                    .copy_latency = 0.01};
    work.policy.piece = 300;
    const GpuMemory reserved = gpu_memory(costs, plan, work.workload.recompute);
    const RunResult result = recorded(work, plan);
    ASSERT_EQ(result.gpu_memory.size(), static_cast<std::size_t>(work.workload.num_gpus));
    for (const std::vector<GpuMemorySample>& samples : result.gpu_memory) {
      ASSERT_FALSE(samples.empty());
      double last = -1;
      for (const GpuMemorySample& sample : samples) {
        ASSERT_GT(sample.time, last);
        last = sample.time;
        const GpuMemory& bytes = sample.bytes;
        // Outputs may exceed their reservation, since the simulated GPU does not wait until they
        // are downloaded.
        ASSERT_LE(bytes.weights, reserved.weights);
        ASSERT_LE(bytes.accumulators, reserved.accumulators);
        ASSERT_LE(bytes.gradients, reserved.gradients);
        ASSERT_LE(bytes.inputs, reserved.inputs);
        ASSERT_LE(bytes.saved + bytes.workspace, reserved.saved + reserved.workspace);
      }
    }
  }
}

TEST(MemoryAccount, OfStagesThatAreAlikeIsNearWhatThePlanReserves) {
  const std::vector<LayerCost> costs(9, layer_of_weights(3000));
  const Plan plan = single_layers(8);
  RunWork work = run_of(costs, 2, 4);
  work.machine = {.upload = 200, .download = 60};  // gradients take 50 ms, a stage 120 ms
  const RunResult result = recorded(work, plan);
  const auto reserved = static_cast<double>(gpu_memory(costs, plan, RecomputeGrain::kStage).total());
  for (int gpu = 0; gpu < 2; ++gpu) {
    ASSERT_NE(result.peak_of(gpu), nullptr);
    const auto peak = static_cast<double>(result.peak_of(gpu)->bytes.total());
    EXPECT_LE(peak, reserved);
    EXPECT_GT(peak, 0.8 * reserved) << "all but one of two gradient buffers";
  }
}

TEST(MemoryAccount, WithoutARecordOrSizesThereIsNone) {
  RunWork work = run_of({layer_of_weights(1000), layer_of_weights(1000)}, 1, 2);
  const Plan plan = single_layers(1);
  EXPECT_TRUE(simulate_run(work, stage_works(work.workload, plan), {.warm_up = 1, .steps = 1}).gpu_memory.empty());
  work.layers.clear();
  EXPECT_EQ(recorded(work, plan).peak_of(0), nullptr);
}

}  // namespace
}  // namespace rp
