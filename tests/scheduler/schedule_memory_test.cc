#include "scheduler/simulation/schedule_memory.h"

#include <gtest/gtest.h>

#include "scheduler/bound/bound_schedules.h"

namespace rp {
namespace {

// One layer per GPU, and the head on the last GPU in addition.
Workload workload_of(int num_gpus, int num_microbatches) {
  Workload workload;
  workload.num_gpus = num_gpus;
  workload.num_microbatches = workload.round_microbatches = num_microbatches;
  workload.layers.assign(static_cast<std::size_t>(num_gpus), {10, 20});
  workload.head = {10, 20};
  return workload;
}

const std::vector<LayerFootprint> kTwoLayers = {{.weights = 1000, .upload = 300, .activation = 20, .saved = 100},
                                                {.weights = 1000, .upload = 300, .activation = 10, .saved = 100},
                                                {.weights = 500, .upload = 200, .activation = 5, .saved = 70}};

std::vector<double> peaks(const ScheduleMemory& memory) {
  std::vector<double> result;
  for (const auto& gpu : memory.gpus) result.push_back(peak_bytes(gpu));
  return result;
}

std::vector<double> bound_peaks(BoundSchedule schedule, const Workload& workload, const std::vector<int>& stages,
                                const std::vector<LayerFootprint>& layers) {
  const TaskGraph graph = bound_schedule(schedule, workload, stages);
  std::vector<LayerRange> ranges;
  for (const int count : stages) {
    const int first = ranges.empty() ? 0 : ranges.back().end;
    ranges.push_back({first, first + count});
  }
  ++ranges.back().end;
  const ScheduleMemory memory = bound_memory(graph, simulate(graph), ranges, layers);
  for (std::size_t gpu = 0; gpu < memory.gpus.size(); ++gpu) {
    double weights = 0;
    for (std::size_t stage = gpu; stage < ranges.size(); stage += memory.gpus.size()) {
      for (int i = ranges[stage].first; i < ranges[stage].end; ++i) weights += layers[i].weights;
    }
    EXPECT_EQ(memory.gpus[gpu].back().bytes, weights) << "at the end";
  }
  EXPECT_TRUE(memory.host.empty());
  return peaks(memory);
}

using Peaks = std::vector<double>;

TEST(ScheduleMemory, OfBoundStagesGoesByTheirOrder) {
  const Workload workload = workload_of(2, 2);
  // GPU 1: weights 1500; each microbatch from its forward on 10 + 5 and the head's 70; in its
  // backward 100 instead of those 70.
  EXPECT_EQ(bound_peaks(BoundSchedule::kGPipe, workload, {1, 1}, kTwoLayers),
            (Peaks{1000 + 40 + 100, 1500 + 2 * 85 + 30}));
  EXPECT_EQ(bound_peaks(BoundSchedule::k1F1B, workload, {1, 1}, kTwoLayers), (Peaks{1000 + 40 + 100, 1500 + 85 + 30}));
  // GPU 1 postpones both weight gradients, so what both backwards need stays.
  EXPECT_EQ(bound_peaks(BoundSchedule::kZbH1, workload, {1, 1}, kTwoLayers),
            (Peaks{1000 + 40 + 100, 1500 + 2 * (85 + 100)}));
}

TEST(ScheduleMemory, OfAStageOfSeveralLayersRecomputesThemOneAfterTheOther) {
  Workload workload = workload_of(2, 2);
  workload.num_gpus = 1;
  std::vector<LayerFootprint> layers = kTwoLayers;
  layers[1].saved = 900;
  // The inputs of all layers for two microbatches, and the head's 70 for each; in the backward 900
  // instead of one of the 70, without another 100.
  EXPECT_EQ(bound_peaks(BoundSchedule::kGPipe, workload, {2}, layers),
            (Peaks{2500 + 2 * (20 + 10 + 5 + 70) + 900 - 70}));
}

TEST(ScheduleMemory, OneForwardOneBackwardKeepsAsManyMicrobatchesAsStagesFollow) {
  const Workload workload = workload_of(4, 12);
  std::vector<LayerFootprint> layers(5);
  for (int layer = 0; layer < 4; ++layer) layers[layer].activation = 1;
  EXPECT_EQ(bound_peaks(BoundSchedule::kGPipe, workload, {1, 1, 1, 1}, layers), (Peaks{12, 12, 12, 12}));
  EXPECT_EQ(bound_peaks(BoundSchedule::k1F1B, workload, {1, 1, 1, 1}, layers), (Peaks{4, 3, 2, 1}));
}

TEST(ScheduleMemory, AGpuHasTheWeightsOfAllItsStages) {
  Workload workload = workload_of(2, 2);
  workload.layers.assign(4, {10, 20});
  std::vector<LayerFootprint> layers(5);
  for (std::size_t layer = 0; layer < 5; ++layer) layers[layer].weights = 1 << layer;
  for (const auto schedule : {BoundSchedule::kInterleaved, BoundSchedule::kLoopedBfs}) {
    EXPECT_EQ(bound_peaks(schedule, workload, {1, 1, 1, 1}, layers), (Peaks{1 + 4, 2 + 8 + 16}));
  }
}

TEST(ScheduleMemory, OfRoundPipeIsTwoStagesAndTheMicrobatchesInFlight) {
  // GPU 0: forward 0-20, 20-40; backward with recompute 40-100, 100-160. GPU 1: fused 20-50, 50-80.
  const Workload workload = workload_of(2, 2);
  const std::vector<StageWork> stages =
      stage_works(workload, {.forward = {{0, 2}}, .fused_start = 2, .backward = {{0, 2}}});
  const TaskGraph graph = chained_schedule(workload, stages, 1);
  const ScheduleMemory memory = round_memory(graph, simulate(graph), workload, stages, kTwoLayers);
  const auto at = [](const std::vector<MemorySample>& samples, double time) {
    double bytes = 0;
    for (const MemorySample& sample : samples) {
      if (sample.time <= time) bytes = sample.bytes;
    }
    return bytes;
  };
  EXPECT_EQ(at(memory.gpus[0], 10), 2 * 600 + 2 * 20 + 5) << "both stages, two inputs, an output";
  EXPECT_EQ(at(memory.gpus[0], 45), 600 + 2 * 20 + 200) << "recompute: the gradient is not there yet";
  EXPECT_EQ(at(memory.gpus[0], 60), 600 + 2 * 20 + 5 + 200);
  EXPECT_EQ(at(memory.gpus[0], 90), 600 + 2 * (20 + 5) + 200);
  EXPECT_EQ(at(memory.gpus[0], 160), 0);
  EXPECT_EQ(at(memory.gpus[1], 45), 200 + 2 * 5 + 5 + 70);
  EXPECT_EQ(peaks(memory), (Peaks{1245, 285}));
  // The boundary before the head needs 5 for each microbatch until the fused stage has ended; so
  // does its gradient, until the backward stage has ended.
  EXPECT_EQ(at(memory.host, 30), 5);
  EXPECT_EQ(at(memory.host, 60), 15);
  EXPECT_EQ(at(memory.host, 100), 10);
  EXPECT_EQ(at(memory.host, 160), 0);
  EXPECT_EQ(peak_bytes(memory.host), 15);
}

// A GPU has at most two stages, however many steps follow each other.
TEST(ScheduleMemory, OfChainedStepsStaysWhatItIs) {
  Workload workload = workload_of(2, 4);
  workload.round_microbatches = 2;
  workload.layers.assign(3, {10, 20});
  const std::vector<LayerFootprint> layers(4, {.weights = 9, .upload = 1000, .activation = 1, .saved = 1});
  const std::vector<StageWork> stages =
      stage_works(workload, {.forward = {{0, 3}}, .fused_start = 3, .backward = {{2, 3}, {0, 2}}});
  const auto peaks_of_steps = [&](int steps) {
    const TaskGraph graph = chained_schedule(workload, stages, steps);
    return round_memory(graph, simulate(graph), workload, stages, layers);
  };
  const ScheduleMemory few = peaks_of_steps(6), many = peaks_of_steps(20);
  EXPECT_EQ(peaks(few), peaks(many));
  EXPECT_EQ(peak_bytes(few.host), peak_bytes(many.host));
  EXPECT_LT(peaks(few)[0], 5100);
  EXPECT_EQ(many.host.back().bytes, 0);
}

}  // namespace
}  // namespace rp
