// scheduler/host_memory.h
// Host memory that a run needs, before anything is allocated: docs/memory.md with figures instead of measurements.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/gpu_memory.h"
#include "scheduler/layer_cost.h"
#include "scheduler/plan.h"

namespace rp {

struct HostSettings {
  std::uint64_t element_bytes = 2;  // of the working copies and gradients; 2: masters in fp32 besides
  bool asynchronous = false;        // two working copies of what is trained
  int rounds_per_step = 1;          // several: an fp32 sum for each gradient
  int num_moments = 2;              // fp32 numbers that the optimizer keeps per parameter
  RecomputeGrain recompute = RecomputeGrain::kStage;
  int num_microbatches = 1;  // of a round
};

struct HostMemory {
  std::uint64_t weights = 0;
  std::uint64_t gradients = 0;
  std::uint64_t optimizer_state = 0;  // masters, moments, sums
  // Two rounds in flight, as if each had all of its boundaries' blocks at once: no run needs more. A run needs less, as
  // blocks of the first round are freed while the second one makes its own: RunResult::peak_activation_bytes of
  // simulate_run().
  std::uint64_t activations = 0;

  [[nodiscard]] std::uint64_t total() const { return weights + gradients + optimizer_state + activations; }
};

// REQUIRES: the plan is valid for these layers, the head among them.
[[nodiscard]] HostMemory host_memory(const std::vector<LayerCost>& costs, const Plan& plan,
                                     const HostSettings& settings);

}  // namespace rp
