// coordinator/run_plans/stage_plans.h
// Holds the plans that the pipelines of a run use, and adapts automatic plans to the times of the
// layers.
//
// Pipelines with automatic plans share the workers, so they are cut together: all of their stages
// are about equally long. A pipeline that trains alone is cut so that its simulated step is short,
// including the messages between nodes. Each node cuts its own plans; with Reduce::kNccl the first
// node's are used on all (coordinator/exchange/plan_exchange.h).
//
// On devices with memory of their own, the first rounds of a pipeline have stages of one layer,
// since the memory that its layers need there is not known yet. After one round, stages are as long
// as the measurements allow. If a round needs more memory than those before it, such as a round of
// longer sequences, the stages are cut again if they do not fit any more.
//
// Owned by the RoundFlow and guarded by the Coordinator's mutex. The Catalogue must outlive it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/indexed.h"
#include "coordinator/run_plans/device_budget.h"
#include "coordinator/run_plans/layer_memories.h"
#include "hoststore/catalogue.h"
#include "hoststore/round_table.h"
#include "roundpipe/plan.h"
#include "scheduler/layer_times.h"
#include "scheduler/network_clock.h"
#include "scheduler/partition.h"

namespace rp {

// Settings for plans by simulated time, which are searched by the layers' costs first, and by their
// measured times later (scheduler/planner.h).
struct PlanSearchSettings {
  int num_workers = 1;
  int num_microbatches = 1;  // of a round, until the first round is measured
  bool asynchronous = false;
  int rounds_per_step = 1;
  PlanNetwork network{};  // to the other nodes, if it is known; counts when layers' times are
};

struct PlanSettings {
  std::optional<Plan> by_hand{};               // the user's plan; if empty, plans are automatic
  std::optional<PlanSearchSettings> search{};  // for fused rounds of a pipeline alone; empty: all plans are balanced
  PlanKind first_kind = PlanKind::kFused;      // the kind that most rounds are expected to have
  std::vector<double> forward_costs{};         // by layer, until times are known; empty: the layers' bytes
  PlanLimits limits{};                         // 0: no bound
  bool fits_device = false;                    // the workers' devices have memory of their own, which bounds the stages
  RecomputeGrain recompute = RecomputeGrain::kStage;  // of rounds that request no other grain
};

class StagePlans {
 public:
  // Throws rp::Error (kUsage) for a plan that does not fit its model.
  StagePlans(const Catalogue& catalogue, std::vector<PlanSettings> settings);

  // Returns the plan for a round of this kind. Throws rp::Error (kUsage) if the user's plan lacks
  // what the kind needs.
  [[nodiscard]] Plan plan(int pipeline, PlanKind kind) const;

  // Adds the measurements of a finished round of this kind: times and memory by layer, over all of
  // its microbatches. May cut automatic plans again.
  void learn(int pipeline, PlanKind kind, const RoundTable& table);
  // Notes the memory that a worker reported of its device.
  void note_memory(const DeviceMemoryPeaks& peaks) { room_.note(peaks); }

  // Returns the times of the layers for one microbatch, smoothed over the rounds.
  [[nodiscard]] const std::vector<LayerTiming>& times(int pipeline) const { return at(pipeline).times.times(); }

 private:
  struct PipelinePlans {
    PlanSettings settings;
    int first_trained_layer = 0;
    std::vector<std::uint64_t> bytes;  // of the layers
    LayerTimes times{0};
    std::optional<LayerMemories> memories{};  // set by the constructor
    int num_microbatches = 0;                 // of the last round
    PlanKind main_kind = PlanKind::kFused;    // the kind for which it is cut together with the other pipelines
    bool has_run = false;
    IndexedArray<PlanKind, Plan, kNumPlanKinds> plans;  // the automatic plans, by kind
  };

  [[nodiscard]] const PipelinePlans& at(int pipeline) const { return pipelines_[pipeline]; }
  [[nodiscard]] static int first_replan(const PipelinePlans& pipeline);
  static bool knows_times(const PipelinePlans& pipeline, PlanKind kind);
  [[nodiscard]] PlanRequest request(const PipelinePlans& pipeline, PlanKind kind, bool measured);
  [[nodiscard]] bool fits(const PipelinePlans& pipeline) const;
  void cut_again(PipelinePlans& pipeline);
  void cut_together(bool measured);
  void cut_alone(PipelinePlans& pipeline, bool measured);
  [[nodiscard]] static bool is_searched(const PipelinePlans& pipeline);
  // Searches for a plan. The times of the request's layers are in ns if `measured`; otherwise they
  // are costs without a unit.
  [[nodiscard]] static Plan search(const PipelinePlans& pipeline, const PlanRequest& request, bool measured);

  std::vector<PipelinePlans> pipelines_;
  DeviceBudget room_;
};

}  // namespace rp
