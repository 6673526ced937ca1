// scheduler/simulation/schedule_memory.h
// Computes how much memory a schedule needs over time, from the needs of its layers and the times
// of its tasks. All amounts are in bytes.
#pragma once

#include <vector>

#include "scheduler/plan.h"
#include "scheduler/round_schedule.h"
#include "scheduler/simulator.h"
#include "scheduler/workload.h"

namespace rp {

// The memory that one layer, or the head, needs.
struct LayerFootprint {
  double weights = 0;     // if stages are bound to GPUs: everything that stays on the layer's GPU
  double upload = 0;      // RoundPipe: what a GPU holds of the layer while it holds the layer's stage
  double activation = 0;  // the layer's input for one microbatch
  double saved = 0;       // for one microbatch, while the layer's backward runs
};

// The memory in use from `time` to the time of the next sample.
struct MemorySample {
  double time = 0;  // ms
  double bytes = 0;
};

struct ScheduleMemory {
  std::vector<std::vector<MemorySample>> gpus;
  std::vector<MemorySample> host{};  // activations; RoundPipe only
};

[[nodiscard]] double peak_bytes(const std::vector<MemorySample>& samples);

// Returns the memory of a schedule that binds stages to GPUs. `stages`: the layers of each;
// the last stage has the head. `layers`: one element for each layer, then one for the head. A GPU
// holds:
//
// - the weights of its stages;
// - the inputs of a stage's layers, from the beginning of a microbatch's forward to the end of its
//   backward;
// - while a backward runs, what the largest layer of its stage needs, because layers are recomputed
//   one after the other.
//
// The head is not recomputed: what its backward needs is kept from its forward on. If weight
// gradients are separate tasks, what the backward of all layers needs is kept until they end.
[[nodiscard]] ScheduleMemory bound_memory(const TaskGraph& graph, const Timeline& timeline,
                                          const std::vector<LayerRange>& stages,
                                          const std::vector<LayerFootprint>& layers);

// Returns the memory of RoundPipe, for the graph of chained_schedule(). A GPU
// holds:
//
// - two stages: the current one, and the next one, which is uploaded when the previous one ends;
// - the inputs of two microbatches;
// - the outputs of the current microbatch and, for the time of a hop, of the previous one;
// - in backward and fused stages, what the backward of all the stage's layers needs.
//
// The host holds the data between stages until the last stage that reads it has ended. The batch is
// not counted.
[[nodiscard]] ScheduleMemory round_memory(const TaskGraph& graph, const Timeline& timeline, const Workload& workload,
                                          const std::vector<StageWork>& stages,
                                          const std::vector<LayerFootprint>& layers);

}  // namespace rp
