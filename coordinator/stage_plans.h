// coordinator/stage_plans.h
// The plans that the pipelines of a run use, and how automatic ones follow the layers' times.
//
// Pipelines whose plans are automatic share the workers, so they are cut together: all of their stages are about as long. One
// that trains alone is cut so that its simulated step is short.
//
// Owned by the Coordinator and guarded by its mutex. The Catalogue must outlive it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "hoststore/catalogue.h"
#include "hoststore/round_table.h"
#include "roundpipe/plan.h"
#include "scheduler/layer_times.h"
#include "scheduler/partition.h"

namespace rp {

// Plans by simulated time, once the layers' times are known (scheduler/planner.h).
struct PlanSearchSettings {
  int num_workers = 1;
  bool asynchronous = false;
  int rounds_per_step = 1;
};

struct PlanSettings {
  std::optional<Plan> by_hand{};            // else automatic
  std::optional<PlanSearchSettings> search{};  // for fused rounds of a pipeline alone; else all plans are balanced
  PlanKind first_kind = PlanKind::kFused;   // what its rounds will most likely be
  std::vector<double> forward_costs{};      // of the layers, before their times are known; empty: their bytes
  PlanLimits limits{};                      // 0: no bound
};

class StagePlans {
 public:
  // Throws rp::Error (kUsage) for a plan that is not the model's.
  StagePlans(const Catalogue& catalogue, std::vector<PlanSettings> settings);

  // Throws rp::Error (kUsage) if the plan by hand does not have what the kind needs.
  [[nodiscard]] Plan plan(int pipeline, PlanKind kind) const;

  // A round of this kind took these times, by layer, for all of its microbatches.
  void learn(int pipeline, PlanKind kind, const RoundTable& table);

  // For one microbatch, smoothed.
  [[nodiscard]] const std::vector<LayerTiming>& times(int pipeline) const { return at(pipeline).times.times(); }

 private:
  struct PipelinePlans {
    PlanSettings settings;
    int first_trained_layer = 0;
    std::vector<std::uint64_t> bytes;  // of the layers
    LayerTimes times{0};
    int num_microbatches = 0;                 // of the last round
    PlanKind main_kind = PlanKind::kFused;    // that it is cut for together with the others
    bool has_run = false;
    std::array<Plan, kNumPlanKinds> plans;  // automatic ones
  };

  [[nodiscard]] const PipelinePlans& at(int pipeline) const { return pipelines_[static_cast<std::size_t>(pipeline)]; }
  static bool knows_times(const PipelinePlans& pipeline, PlanKind kind);
  [[nodiscard]] static PlanRequest request(const PipelinePlans& pipeline, PlanKind kind, bool measured);
  void cut_together(bool measured);
  static void cut_alone(PipelinePlans& pipeline, bool measured);
  [[nodiscard]] static bool is_searched(const PipelinePlans& pipeline);
  [[nodiscard]] static Plan search(const PipelinePlans& pipeline);

  std::vector<PipelinePlans> pipelines_;
};

}  // namespace rp
