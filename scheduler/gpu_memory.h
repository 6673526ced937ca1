// scheduler/gpu_memory.h
// Computes the GPU memory that a worker needs for a plan, and how long stages may be for a given
// amount of memory. It counts the buffers of worker/running_task.h and worker/input_buffers.h; the
// needs of single layers come from LayerCost.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "roundpipe/plan.h"
#include "scheduler/layer_cost.h"
#include "scheduler/plan.h"
#include "scheduler/plan_cost.h"
#include "scheduler/workload.h"

namespace rp {

// The bytes of each kind of buffer. Workers keep their buffers and let them grow to the needs of
// the largest stage, so each is a maximum over the plan's stages.
struct GpuMemory {
  std::uint64_t weights = 0;       // of two stages: the current one and the next
  std::uint64_t accumulators = 0;  // fp32 gradients of the stage that computes
  std::uint64_t gradients = 0;     // rounded gradients of two stages: one computes, one is downloaded
  std::uint64_t inputs = 0;        // of two microbatches: activations and gradients that come from the host
  std::uint64_t outputs = 0;       // of two microbatches: activations and gradients that go to the host
  std::uint64_t saved = 0;         // kept between recompute (or the fused stage's forward) and backward
  std::uint64_t workspace = 0;     // temporary, inside a layer
  std::uint64_t expanded = 0;      // quantised weights of the stage that computes, expanded

  [[nodiscard]] std::uint64_t total() const {
    return weights + accumulators + gradients + inputs + outputs + saved + workspace + expanded;
  }
  bool operator==(const GpuMemory&) const = default;
};

// Returns the larger one of each buffer. `saved`, `workspace` and `expanded` share one pool, which
// one stage uses at a time, so they come from the argument in which their sum is larger.
[[nodiscard]] GpuMemory largest(const GpuMemory& a, const GpuMemory& b);

// Returns a text such as "weights of two stages 1.2 GiB, fp32 gradients ...".
[[nodiscard]] std::string memory_text(const GpuMemory& memory);

// Returns what one stage needs while another one of its size is prefetched.
[[nodiscard]] GpuMemory stage_memory(const std::vector<LayerCost>& costs, LayerRange layers, Phase phase,
                                     RecomputeGrain recompute);

// Returns what all stages of a plan of any kind need on one worker. `costs`: by layer, including
// the head. REQUIRES: the plan is valid for these layers.
[[nodiscard]] GpuMemory gpu_memory(const std::vector<LayerCost>& costs, const Plan& plan, RecomputeGrain recompute);

// Returns the error text for a plan given by the user that, by the known costs of its layers, needs
// more memory than a worker has; nothing if it fits.
[[nodiscard]] std::optional<std::string> too_large_text(const std::vector<LayerCost>& costs, const Plan& plan,
                                                        std::uint64_t capacity_bytes, RecomputeGrain recompute);

// Returns limits such that every plan within them fits into `capacity_bytes`
// (GpuProfile::usable_bytes()). Workers keep their buffers, so for each kind of buffer the largest
// stage counts, whichever stage that is. Therefore each kind has a budget. The budgets are chosen
// so that backward stages may be long, and forward stages about three times as long, which take the
// same time. The fused stage has at most `max_fused_layers` layers in addition to the head. `kind`:
// of the plans; in plans without a fused stage the head is in a stage like the other layers.
// `beside`: what other plans of the workers already occupy of the capacity. Throws rp::Error
// (kNoResource) if stages of one layer do not fit; the message names the largest layer, the memory
// that is needed for each purpose, and remedies.
[[nodiscard]] StageLimits stage_limits(const std::vector<LayerCost>& costs, double capacity_bytes,
                                       RecomputeGrain recompute, int max_fused_layers, PlanKind kind = PlanKind::kFused,
                                       const GpuMemory& beside = {});

// Returns the maximum that any plan of the kind within the limits needs.
[[nodiscard]] GpuMemory memory_within(const std::vector<LayerCost>& costs, const StageLimits& limits,
                                      RecomputeGrain recompute, PlanKind kind = PlanKind::kFused);

// Returns true if some stage of the plan (forward, backward or fused) ends at its limit in
// `limits`, and `wider` would allow it to be longer. If this is false for a plan that was chosen
// within `limits`, the search cannot find a better plan with wider limits.
[[nodiscard]] bool is_held(const Plan& plan, const StageLimits& limits, const StageLimits& wider);

}  // namespace rp
