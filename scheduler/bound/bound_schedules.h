// scheduler/bound/bound_schedules.h
// Builds the schedules of pipelines whose stages are bound to GPUs, for comparison with RoundPipe.
// The head runs in the last stage. Every stage is recomputed before its backward, once its gradient
// has arrived.
#pragma once

#include <vector>

#include "scheduler/simulator.h"
#include "scheduler/workload.h"

namespace rp {

enum class BoundSchedule : std::uint8_t {
  kGPipe,        // all forwards, then all backwards (Huang et al. 2019)
  k1F1B,         // one forward, one backward (PipeDream-Flush; Narayanan et al. 2021)
  kInterleaved,  // 1F1B with several stages per GPU (Megatron-LM; Narayanan et al. 2021)
  kLoopedBfs,    // GPipe with several stages per GPU, breadth first (Lamy-Poirier 2023)
  kZbH1,         // 1F1B with backwards split into input and weight gradients (Qi et al. 2024)
};

// Throws rp::Error (kUsage) if the stages do not have the workload's layers or the wrong number for
// the schedule, and for kInterleaved if the number of microbatches is not a multiple of the number
// of GPUs.
void check_bound_stages(BoundSchedule schedule, const Workload& workload, const std::vector<int>& stages);

// Returns the task graph of one step. `stages`: the number of layers of each stage; the last one
// has the head in addition. There is one stage per GPU, or for kInterleaved and kLoopedBfs the same
// number on each GPU, with stage s on GPU s mod num_gpus. For kZbH1 the weight gradients take half
// of the backward. Throws as check_bound_stages() does.
[[nodiscard]] TaskGraph bound_schedule(BoundSchedule schedule, const Workload& workload,
                                       const std::vector<int>& stages);

}  // namespace rp
