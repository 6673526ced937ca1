// scheduler/host_memory.h
// Estimates the host memory that a run needs, before anything is allocated. It computes the items
// that docs/memory.md lists.
#pragma once

#include <cstdint>
#include <vector>

#include "common/nodes.h"
#include "scheduler/gpu_memory.h"
#include "scheduler/layer_cost.h"
#include "scheduler/plan.h"

namespace rp {

struct HostSettings {
  std::uint64_t element_bytes = 2;  // of the working copies and gradients; 2: there are also masters in fp32
  bool asynchronous = false;        // two working copies of what is trained
  int rounds_per_step = 1;          // of all nodes; more than 1: there is an fp32 sum for each gradient
  int num_moments = 2;              // fp32 numbers that the optimizer keeps for each parameter
  RecomputeGrain recompute = RecomputeGrain::kStage;
  int num_microbatches = 1;  // of a round
  NodePlace place{};         // of the node whose memory is estimated
};

struct HostMemory {
  std::uint64_t weights = 0;
  std::uint64_t gradients = 0;
  std::uint64_t optimizer_state = 0;  // masters, moments, sums; of the elements that the node owns
  // For two rounds in flight, as if each had the blocks of all its boundaries at the same time: an
  // upper bound. A run needs less, since blocks of the first round are freed while the second one
  // produces its own (see RunResult::peak_activation_bytes of simulate_run()).
  std::uint64_t activations = 0;
  std::uint64_t received_gradients = 0;  // buffers for gradients of other nodes

  [[nodiscard]] std::uint64_t total() const {
    return weights + gradients + optimizer_state + activations + received_gradients;
  }
};

// `costs`: by layer, including the head. What a layer trains counts as one weight group. REQUIRES: the plan is valid
// for these layers.
[[nodiscard]] HostMemory host_memory(const std::vector<LayerCost>& costs, const Plan& plan,
                                     const HostSettings& settings);

}  // namespace rp
