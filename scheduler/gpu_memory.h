// scheduler/gpu_memory.h
// GPU memory that a worker needs for a plan, and how long stages may be for a given memory. What it counts are the
// buffers of worker/running_task.h and worker/input_buffers.h; what layers take by themselves is LayerCost's.
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

// Buffers are kept and grow to what the largest stage needs, so each is a maximum over the plan's stages.
struct GpuMemory {
  std::uint64_t weights = 0;       // two stages: the present one and the next
  std::uint64_t accumulators = 0;  // fp32 gradients, of the stage that computes
  std::uint64_t gradients = 0;     // rounded, two stages: computed and downloaded
  std::uint64_t inputs = 0;        // two microbatches: activations and gradients that come from the host
  std::uint64_t outputs = 0;       // likewise, that go there
  std::uint64_t saved = 0;         // between recompute (or the fused stage's forward) and backward
  std::uint64_t workspace = 0;     // inside a layer

  [[nodiscard]] std::uint64_t total() const {
    return weights + accumulators + gradients + inputs + outputs + saved + workspace;
  }
  bool operator==(const GpuMemory&) const = default;
};

// Each buffer as large as the larger one; what is saved and the workspace come from one pool, of one stage at a time.
[[nodiscard]] GpuMemory largest(const GpuMemory& a, const GpuMemory& b);

// "weights of two stages 1.2 GiB, fp32 gradients ..."
[[nodiscard]] std::string memory_text(const GpuMemory& memory);

// Of a stage, with another one of its size prefetched.
enum class StageKind { kForward, kFused, kBackward };
[[nodiscard]] GpuMemory stage_memory(const std::vector<LayerCost>& costs, LayerRange layers, StageKind kind,
                                     RecomputeGrain recompute);

// Of all stages of a plan of any kind on one worker. REQUIRES: the plan is valid for these layers, the head among them.
[[nodiscard]] GpuMemory gpu_memory(const std::vector<LayerCost>& costs, const Plan& plan, RecomputeGrain recompute);

// What to say of a plan by hand that needs more than a worker has, by what is known of its layers; nothing if it fits.
[[nodiscard]] std::optional<std::string> too_large_text(const std::vector<LayerCost>& costs, const Plan& plan,
                                                        std::uint64_t capacity_bytes, RecomputeGrain recompute);

// Limits such that every plan within them fits into `capacity_bytes` (GpuProfile::usable_bytes()). Since buffers are
// kept, the largest of each kind counts, whichever stage it is of: so each kind has a budget, shared out such that
// backward stages may be long, and forward stages about three times as long, which take as much time. At most
// `max_fused_layers` layers beside the head in the fused stage. `kind`: of the plans; all but the fused ones have the
// head in stages as the other layers. `beside`: what other plans of the workers have of the capacity already. Throws
// rp::Error (kNoResource) if stages of one layer do not fit, naming the largest layer, what is needed for what, and
// what would help.
[[nodiscard]] StageLimits stage_limits(const std::vector<LayerCost>& costs, double capacity_bytes,
                                       RecomputeGrain recompute, int max_fused_layers, PlanKind kind = PlanKind::kFused,
                                       const GpuMemory& beside = {});

// The most that any plan of the kind within the limits needs.
[[nodiscard]] GpuMemory memory_within(const std::vector<LayerCost>& costs, const StageLimits& limits,
                                      RecomputeGrain recompute, PlanKind kind = PlanKind::kFused);

// Whether `limits` keep a stage of the plan from being longer, forward, backward or fused, where `wider` do not. A plan
// that was chosen within `limits` and is not held by them gains nothing from wider ones, as far as the search can tell.
[[nodiscard]] bool is_held(const Plan& plan, const StageLimits& limits, const StageLimits& wider);

}  // namespace rp
