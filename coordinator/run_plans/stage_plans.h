// coordinator/run_plans/stage_plans.h
// The plans that the pipelines of a run use, and how automatic ones follow the layers' times.
//
// Pipelines whose plans are automatic share the workers, so they are cut together: all of their stages are about as
// long. One that trains alone is cut so that its simulated step is short.
//
// On devices with memory of their own, a pipeline's first rounds have stages of one layer, since nobody knows what its
// layers take there; after one round stages are as long as what was measured allows. A round that takes more than those
// before, as one of longer sequences, has them cut anew where they do not fit any more.
//
// Owned by the Coordinator and guarded by its mutex. The Catalogue must outlive it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/run_plans/device_budget.h"
#include "coordinator/run_plans/layer_memories.h"
#include "hoststore/catalogue.h"
#include "hoststore/round_table.h"
#include "roundpipe/plan.h"
#include "scheduler/layer_times.h"
#include "scheduler/partition.h"

namespace rp {

// Plans by simulated time: by the layers' costs, then by their times (scheduler/planner.h).
struct PlanSearchSettings {
  int num_workers = 1;
  int num_microbatches = 1;  // of a round, before there was one
  bool asynchronous = false;
  int rounds_per_step = 1;
};

struct PlanSettings {
  std::optional<Plan> by_hand{};               // else automatic
  std::optional<PlanSearchSettings> search{};  // for fused rounds of a pipeline alone; else all plans are balanced
  PlanKind first_kind = PlanKind::kFused;      // what its rounds will most likely be
  std::vector<double> forward_costs{};         // of the layers, before their times are known; empty: their bytes
  PlanLimits limits{};                         // 0: no bound
  bool fits_device = false;                    // the workers' devices have memory of their own, which bounds the stages
  RecomputeGrain recompute = RecomputeGrain::kStage;  // of rounds that say nothing else
};

class StagePlans {
 public:
  // Throws rp::Error (kUsage) for a plan that is not the model's.
  StagePlans(const Catalogue& catalogue, std::vector<PlanSettings> settings);

  // Throws rp::Error (kUsage) if the plan by hand does not have what the kind needs.
  [[nodiscard]] Plan plan(int pipeline, PlanKind kind) const;

  // A round of this kind took these times, by layer, for all of its microbatches.
  void learn(int pipeline, PlanKind kind, const RoundTable& table);
  // A worker told this of its device.
  void note_memory(const DeviceMemoryPeaks& peaks) { room_.note(peaks); }

  // For one microbatch, smoothed.
  [[nodiscard]] const std::vector<LayerTiming>& times(int pipeline) const { return at(pipeline).times.times(); }

 private:
  struct PipelinePlans {
    PlanSettings settings;
    int first_trained_layer = 0;
    std::vector<std::uint64_t> bytes;  // of the layers
    LayerTimes times{0};
    std::optional<LayerMemories> memories{};  // always there
    int num_microbatches = 0;                 // of the last round
    PlanKind main_kind = PlanKind::kFused;    // that it is cut for together with the others
    bool has_run = false;
    std::array<Plan, kNumPlanKinds> plans;  // automatic ones
  };

  [[nodiscard]] const PipelinePlans& at(int pipeline) const { return pipelines_[static_cast<std::size_t>(pipeline)]; }
  [[nodiscard]] static int first_replan(const PipelinePlans& pipeline);
  static bool knows_times(const PipelinePlans& pipeline, PlanKind kind);
  [[nodiscard]] PlanRequest request(const PipelinePlans& pipeline, PlanKind kind, bool measured);
  [[nodiscard]] bool fits(const PipelinePlans& pipeline) const;
  void cut_anew(PipelinePlans& pipeline);
  void cut_together(bool measured);
  void cut_alone(PipelinePlans& pipeline, bool measured);
  [[nodiscard]] static bool is_searched(const PipelinePlans& pipeline);
  // The request's layers have times in ns, or costs, which have no unit.
  [[nodiscard]] static Plan search(const PipelinePlans& pipeline, const PlanRequest& request, bool measured);

  std::vector<PipelinePlans> pipelines_;
  DeviceBudget room_;
};

}  // namespace rp
