#include "scheduler/simulation/predicted_times.h"

#include <gtest/gtest.h>

#include "scheduler/simulation/predicted_machine.h"

namespace rp {
namespace {

// A GPU with round figures. In 1 ms it does 2e9 operations of matrix products with 16-bit sums (1e9
// with 32-bit sums), or 0.5e9 operations of attention, or moves 1e6 bytes of elementwise work.
GpuProfile unit_gpu() {
  GpuProfile gpu;
  gpu.fp16_accumulate_tflops = 4;
  gpu.fp32_accumulate_tflops = 2;
  gpu.gemm_efficiency = 0.5;
  gpu.attention_efficiency = 0.25;
  gpu.memory_gbs = 10;
  gpu.memory_efficiency = 0.1;
  gpu.host_to_device_gbs = 2;
  gpu.device_to_host_gbs = 1;
  gpu.both_directions_gbs = 0.5;
  gpu.copy_latency_us = 100;
  return gpu;
}

TEST(PredictedTimes, KindsOfWorkFollowEachOther) {
  const GpuProfile gpu = unit_gpu();
  EXPECT_DOUBLE_EQ(pass_ms({.gemm_flops = 2e9}, gpu, Accumulate::kFp16), 1);
  EXPECT_DOUBLE_EQ(pass_ms({.gemm_flops = 2e9}, gpu, Accumulate::kFp32), 2);
  EXPECT_DOUBLE_EQ(pass_ms({.attention_flops = 0.5e9}, gpu, Accumulate::kFp16), 1)
      << "the sums of attention have 32 bits in both cases";
  EXPECT_DOUBLE_EQ(pass_ms({.elementwise_bytes = 1e6}, gpu, Accumulate::kFp16), 1);
  EXPECT_DOUBLE_EQ(
      pass_ms({.gemm_flops = 2e9, .attention_flops = 0.5e9, .elementwise_bytes = 1e6}, gpu, Accumulate::kFp16), 3);
}

TEST(PredictedTimes, CopiesTakeTheLatencyAndTheSpeedOfTheirDirection) {
  const GpuProfile gpu = unit_gpu();
  EXPECT_DOUBLE_EQ(copy_ms(2e6, CopyDirection::kHostToDevice, gpu), 1.1);
  EXPECT_DOUBLE_EQ(copy_ms(2e6, CopyDirection::kDeviceToHost, gpu), 2.1);
}

TEST(PredictedTimes, TheLastLayerOfTheModelIsTheWorkloadsHead) {
  std::vector<LayerCost> costs(3);
  costs[0].forward.gemm_flops = 2e9;
  costs[1].output_bytes = 2'000'000;
  costs[2].forward.gemm_flops = 4e9;
  costs[2].backward.gemm_flops = 8e9;
  const Workload workload = predicted_workload(costs, unit_gpu(), Accumulate::kFp16);
  ASSERT_EQ(workload.num_layers(), 2);
  EXPECT_DOUBLE_EQ(workload.layers[0].forward, 1);
  EXPECT_DOUBLE_EQ(workload.head.forward, 2);
  EXPECT_DOUBLE_EQ(workload.head.backward, 4);
  EXPECT_DOUBLE_EQ(workload.hop, 2.1 + 1.1) << "down from one GPU, up to the next";
}

TEST(PredictedTimes, QuantisedWeightsAreExpandedOnceForTheMicrobatchesOfATask) {
  LayerCost cost{.weight_bytes = 1'000'000, .expanded_bytes = 3'000'000};
  cost.forward.gemm_flops = 2e9;
  EXPECT_DOUBLE_EQ(expansion_ms(cost, unit_gpu()), 4);
  EXPECT_DOUBLE_EQ(expansion_ms({.weight_bytes = 1'000'000}, unit_gpu()), 0) << "nothing is expanded";
  const Workload workload = predicted_workload({cost, cost}, unit_gpu(), Accumulate::kFp16, 8);
  EXPECT_DOUBLE_EQ(workload.layers[0].forward, 1.5);
  EXPECT_DOUBLE_EQ(workload.layers[0].backward, 0);
}

TEST(PredictedMachine, ProfilesBecomeBytesAMillisecond) {
  ServerProfile server;
  server.memory_gbs = 100;
  server.optimizer_gbs = 80;
  server.pageable_upload_gbs = 1.5;
  server.gpus_per_root = 2;
  server.root_gbs = 3;
  const Machine machine = predicted_machine(unit_gpu(), server),
                pageable = predicted_machine(unit_gpu(), server, /*pinned=*/false);
  EXPECT_EQ(machine.upload, 2e6);
  EXPECT_EQ(machine.download, 1e6);
  EXPECT_EQ(machine.both_directions, 1e6) << "both directions together";
  EXPECT_EQ(machine.weights_upload, 2e6);
  EXPECT_EQ(pageable.weights_upload, 1.5e6);
  EXPECT_DOUBLE_EQ(machine.copy_latency, 0.1);
  EXPECT_EQ(machine.gpus_per_root, 2);
  EXPECT_EQ(machine.root_download, 3e6);
  EXPECT_EQ(machine.updates, 80e6);
}

TEST(PredictedMachine, AnUpdateMovesTwentyEightBytesAParameter) {
  LayerCost cost;
  cost.trained_elements = cost.gradient_elements = 100;
  cost.gradient_bytes = cost.weight_bytes = 200;
  cost.input_bytes = 7;
  const LayerBytes one = predicted_bytes({cost}, {}).front(),
                   several = predicted_bytes({cost}, {.rounds_per_step = 4}).front();
  EXPECT_EQ(one.update, 2800);
  EXPECT_EQ(one.sum, 0);
  EXPECT_EQ(one.gradient, 200);
  EXPECT_EQ(one.input, 7);
  EXPECT_EQ(several.update, 3000) << "reads the fp32 sum instead of the gradient";
  EXPECT_EQ(several.sum, 1000) << "gradient read, sum read and written";
  EXPECT_EQ(predicted_bytes({cost}, {.element_bytes = 4}).front().update, 2800) << "fp32 weights are their own masters";
  cost.trained_elements = cost.gradient_elements = cost.gradient_bytes = 0;
  EXPECT_EQ(predicted_bytes({cost}, {}).front().update, 0) << "frozen";
}

}  // namespace
}  // namespace rp
