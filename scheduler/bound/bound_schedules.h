// scheduler/bound/bound_schedules.h
// The schedules of pipelines whose stages are bound to a GPU, for comparison with RoundPipe. The head runs in the last
// stage. Every stage is recomputed before its backward, when its gradient has arrived.
#pragma once

#include <string>
#include <vector>

#include "scheduler/simulator.h"
#include "scheduler/workload.h"

namespace rp {

enum class BoundSchedule : std::uint8_t {
  kGPipe,        // all forwards, then all backwards (Huang et al. 2019)
  k1F1B,         // one forward, one backward (PipeDream-Flush; Narayanan et al. 2021)
  kInterleaved,  // 1F1B with several stages a GPU (Megatron-LM; Narayanan et al. 2021)
  kLoopedBfs,    // GPipe with several stages a GPU, breadth first (Lamy-Poirier 2023)
  kZbH1,         // 1F1B with backwards split into input and weight gradients (Qi et al. 2024)
};

// Throws rp::Error (kUsage) for stages that are not the workload's, and for kInterleaved if the microbatches are no
// multiple of the GPUs.
void check_bound_stages(BoundSchedule schedule, const Workload& workload, const std::vector<int>& stages);

// `stages`: the number of layers of each, the last one with the head besides. One stage a GPU; kInterleaved and
// kLoopedBfs: the same number on each GPU, stage s on GPU s mod num_gpus. kZbH1: the weight gradients are half of the
// backward. Throws as check_bound_stages().
[[nodiscard]] TaskGraph bound_schedule(BoundSchedule schedule, const Workload& workload,
                                       const std::vector<int>& stages);

}  // namespace rp
