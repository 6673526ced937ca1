// scheduler/simulation/schedule_memory.h
// How much memory a schedule needs over time, from what its layers need and when its tasks run. Amounts in bytes.
#pragma once

#include <vector>

#include "scheduler/plan.h"
#include "scheduler/round_schedule.h"
#include "scheduler/simulator.h"
#include "scheduler/workload.h"

namespace rp {

// Of a layer, or the head.
struct LayerFootprint {
  double weights = 0;     // all that stays on its GPU where stages are bound to one
  double upload = 0;      // RoundPipe: what a GPU has of it while it has its stage
  double activation = 0;  // its input, of one microbatch
  double saved = 0;       // of one microbatch, while its backward runs
};

// From `time` to the next sample's.
struct MemorySample {
  double time = 0;  // ms
  double bytes = 0;
};

struct ScheduleMemory {
  std::vector<std::vector<MemorySample>> gpus;
  std::vector<MemorySample> host{};  // activations; of RoundPipe only
};

[[nodiscard]] double peak_bytes(const std::vector<MemorySample>& samples);

// Stages bound to GPUs, `stages` their layers, the last one with the head. A GPU has the weights of its stages; the
// inputs of a stage's layers from the beginning of a microbatch's forward to the end of its backward; and, while a
// backward runs, what its largest layer needs, since layers are recomputed one after the other. The head is not
// recomputed: what its backward needs stays from its forward on. Where weight gradients are tasks of their own, what
// the backward of all layers needs stays until their end. `layers`: one for each and the head, which is the last one.
[[nodiscard]] ScheduleMemory bound_memory(const TaskGraph& graph, const Timeline& timeline,
                                          const std::vector<LayerRange>& stages,
                                          const std::vector<LayerFootprint>& layers);

// RoundPipe, of round_schedule() or chained_schedule(). A GPU has two stages: the present one and the next, from the
// end of the one before the present one on. Of microbatches it has the inputs of two, the outputs of the present one
// and, for a hop, of the last one, and in backward and fused stages what the backward of all the stage's layers needs.
// The host has what lies between stages until the last stage that reads it is over, the batch not counted.
[[nodiscard]] ScheduleMemory round_memory(const TaskGraph& graph, const Timeline& timeline, const Workload& workload,
                                          const std::vector<StageWork>& stages,
                                          const std::vector<LayerFootprint>& layers);

}  // namespace rp
