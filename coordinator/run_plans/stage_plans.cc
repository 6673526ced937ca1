#include "coordinator/run_plans/stage_plans.h"

#include <algorithm>

#include "common/check.h"
#include "scheduler/planner.h"

namespace rp {

namespace {

// Plans are cut by the measured times after these rounds: soon, and again when the times are
// smooth.
constexpr int kReplanAfter = 2;
constexpr int kReplanAgainAfter = 10;
// On a device with memory of its own, plans are cut earlier, since the first stages are short.
constexpr int kFitAfter = 1;

constexpr std::array<PlanKind, kNumPlanKinds> kKinds = {PlanKind::kFused, PlanKind::kTrain, PlanKind::kInfer};

// The time from the end of a task to the start of the next one on another worker, in addition to
// the copies: benchmarks/dispatch_overhead.
constexpr double kHopMs = 0.1;
constexpr double kMsPerNs = 1e-6;
// Layers in addition to the head in the fused stage of a plan that is searched: the stage keeps the
// activations of its layers.
constexpr int kMaxFusedLayers = 2;

// On processors, whose memory is the host's, a step of several rounds may have a fused stage of all
// layers: then each worker computes rounds of its own, recomputes nothing, and waits for no other
// worker. In a step of one round, the other workers would wait for that stage.
int max_fused_layers(const PlanSettings& settings, int num_layers) {
  return settings.fits_device || settings.search->rounds_per_step == 1 ? kMaxFusedLayers : num_layers - 1;
}

std::uint64_t bytes_of(const Catalogue& catalogue, CatalogueLayer layer) {
  std::uint64_t bytes = 0;
  for (const UseId use : catalogue.uses_of(layer))
    bytes += catalogue.weight_groups()[catalogue.uses()[use].group].bytes();
  return bytes;
}

}  // namespace

StagePlans::StagePlans(const Catalogue& catalogue, std::vector<PlanSettings> settings) {
  RP_ASSERT(settings.size() == catalogue.pipelines().size());
  for (std::size_t i = 0; i < settings.size(); ++i) {
    const PipelineRecord& record = catalogue.pipelines()[i];
    const int num_layers = static_cast<int>(record.num_layers);
    PipelinePlans& pipeline = pipelines_.emplace_back();
    pipeline.settings = std::move(settings[i]);
    if (pipeline.settings.by_hand) validate_plan(*pipeline.settings.by_hand, num_layers);
    pipeline.main_kind = pipeline.settings.first_kind;
    pipeline.times = LayerTimes(num_layers);
    pipeline.memories.emplace(catalogue, static_cast<int>(i));
    for (int layer = 0; layer < num_layers; ++layer) {
      pipeline.bytes.push_back(bytes_of(catalogue, record.catalogue_layer(layer)));
    }
    pipeline.first_trained_layer = catalogue.first_trained_layer(static_cast<int>(i));
  }
  cut_together(false);
  for (PipelinePlans& pipeline : pipelines_) cut_alone(pipeline, false);
}

Plan StagePlans::plan(int pipeline, PlanKind kind) const {
  const PipelinePlans& plans = at(pipeline);
  if (plans.settings.by_hand) return plan_for(kind, *plans.settings.by_hand, static_cast<int>(plans.bytes.size()));
  return plans.plans[kind];
}

void StagePlans::learn(int pipeline, PlanKind kind, const RoundTable& table) {
  PipelinePlans& plans = pipelines_[pipeline];
  std::vector<LayerTiming> round;
  for (int layer = 0; layer < static_cast<int>(plans.bytes.size()); ++layer) {
    const LayerTime& time = table.layer_time(layer);
    const auto of_microbatch = [&](std::int64_t ns) { return static_cast<double>(ns) / table.num_microbatches(); };
    round.push_back({.forward = of_microbatch(time.forward_ns),
                     .recompute = of_microbatch(time.recompute_ns),
                     .backward = of_microbatch(time.backward_ns)});
  }
  plans.times.add(round);
  plans.num_microbatches = table.num_microbatches();
  // The rounds that it has had count, not what was expected. A pipeline that trains and evaluates
  // is cut for training.
  plans.main_kind = plans.has_run ? std::min(plans.main_kind, kind) : kind;
  plans.has_run = true;
  const int records = kind == PlanKind::kInfer ? plans.times.num_forwards() : plans.times.num_backwards();
  const bool needs_more = plans.memories->add(table) && !fits(plans);
  const bool is_time = records == first_replan(plans) || records == kReplanAfter || records == kReplanAgainAfter;
  if (!plans.settings.by_hand && (is_time || needs_more)) cut_again(plans);
}

// Checks only plans whose needs are known.
bool StagePlans::fits(const PipelinePlans& pipeline) const {
  if (!pipeline.settings.fits_device || !room_.is_known()) return true;
  return std::all_of(kKinds.begin(), kKinds.end(), [&](PlanKind kind) {
    return !knows_times(pipeline, kind) ||
           room_.has_room_for(pipeline.memories->costs(), pipeline.plans[kind], pipeline.settings.recompute);
  });
}

void StagePlans::cut_again(PipelinePlans& pipeline) {
  room_.clear();
  for (const PipelinePlans& other : pipelines_) {
    if (other.settings.by_hand) room_.take(other.memories->costs(), *other.settings.by_hand, other.settings.recompute);
  }
  cut_together(true);
  for (PipelinePlans& other : pipelines_) {
    // If all pipelines share a device's memory, the other plans of each depend on what the main
    // plans leave free.
    if (&other == &pipeline || other.settings.fits_device) cut_alone(other, true);
  }
}

int StagePlans::first_replan(const PipelinePlans& pipeline) {
  return pipeline.settings.fits_device ? kFitAfter : kReplanAfter;
}

bool StagePlans::knows_times(const PipelinePlans& pipeline, PlanKind kind) {
  const int least = first_replan(pipeline);
  const bool forward = pipeline.times.num_forwards() >= least;
  return kind == PlanKind::kInfer ? forward : forward && pipeline.times.num_backwards() >= least;
}

PlanRequest StagePlans::request(const PipelinePlans& pipeline, PlanKind kind, bool measured) {
  const std::uint64_t max_bytes = pipeline.settings.limits.max_stage_bytes;
  PlanRequest result{.kind = kind, .layers = {}, .max_stage_bytes = max_bytes > 0 ? max_bytes : UINT64_MAX};
  for (std::size_t layer = 0; layer < pipeline.bytes.size(); ++layer) {
    LayerTiming time = pipeline.times.times()[layer];
    if (!measured) {
      const double given = pipeline.settings.forward_costs.empty() ? 0 : pipeline.settings.forward_costs[layer];
      time.forward = given > 0 ? given : static_cast<double>(pipeline.bytes[layer]);
      time.backward = 2 * time.forward;
    }
    if (time.recompute == 0) time.recompute = time.forward;  // it was in the fused stage, which has no recompute
    const bool goes_back = static_cast<int>(layer) >= pipeline.first_trained_layer;
    result.layers.push_back({.forward = time.forward,
                             .recompute = goes_back ? time.recompute : 0,
                             .backward = goes_back ? time.backward : 0,
                             .bytes = pipeline.bytes[layer]});
  }
  if (!pipeline.settings.fits_device) return result;
  if (!measured) {
    result.limits = DeviceBudget::stages_of_one_layer(static_cast<int>(pipeline.bytes.size()), kind);
  } else if (room_.is_known()) {
    const int num_layers = static_cast<int>(pipeline.bytes.size());
    result.limits = room_.take(pipeline.memories->costs(), pipeline.settings.recompute, kind,
                               is_searched(pipeline) ? kMaxFusedLayers : num_layers - 1);
  }
  return result;
}

void StagePlans::cut_together(bool measured) {
  std::vector<PipelinePlans*> cut;
  std::vector<PlanRequest> requests;
  int min_stages = 1;
  double threshold = 0;
  for (PipelinePlans& pipeline : pipelines_) {
    if (pipeline.settings.by_hand || (measured && !knows_times(pipeline, pipeline.main_kind))) continue;
    cut.push_back(&pipeline);
    requests.push_back(request(pipeline, pipeline.main_kind, measured));
    const PlanLimits& limits = pipeline.settings.limits;
    min_stages = std::max(min_stages, limits.min_stages);
    if (limits.threshold > 0) threshold = threshold > 0 ? std::min(threshold, limits.threshold) : limits.threshold;
  }
  if (cut.empty()) return;
  // Before anything is measured, the layers' costs are used as their times, unless a device's memory
  // limits the stages.
  if (cut.size() == 1 && is_searched(*cut.front()) && (measured || !cut.front()->settings.fits_device)) {
    cut.front()->plans[PlanKind::kFused] = search(*cut.front(), requests.front(), measured);
    return;
  }
  std::vector<Plan> plans = balanced_plans(requests, min_stages, threshold);
  for (std::size_t i = 0; i < cut.size(); ++i) cut[i]->plans[cut[i]->main_kind] = std::move(plans[i]);
}

// With one worker, all plans take the same time.
bool StagePlans::is_searched(const PipelinePlans& pipeline) {
  return pipeline.settings.search && pipeline.settings.search->num_workers > 1 &&
         pipeline.main_kind == PlanKind::kFused && pipeline.bytes.size() > 1;
}

Plan StagePlans::search(const PipelinePlans& pipeline, const PlanRequest& request, bool measured) {
  const PlanSearchSettings& settings = *pipeline.settings.search;
  const auto num_layers = request.layers.size();
  PlanTask task;
  const int num_microbatches = measured ? pipeline.num_microbatches : settings.num_microbatches;
  task.round_choices = {num_microbatches};
  task.asynchronous = settings.asynchronous;
  task.workload.num_gpus = settings.num_workers;
  task.workload.num_microbatches = num_microbatches * settings.rounds_per_step;
  if (measured) {  // costs have no unit, so nothing is compared with them
    task.workload.hop = kHopMs;
    task.network = settings.network;
  }
  task.workload.first_trained_layer = pipeline.first_trained_layer;
  for (const PartitionLayer& layer : request.layers) {
    // The simulation assumes that a recompute takes as long as a forward pass.
    const double backward = std::max(0.0, layer.recompute + layer.backward - layer.forward);
    task.workload.layers.push_back({.forward = kMsPerNs * layer.forward, .backward = kMsPerNs * backward});
  }
  task.workload.head = task.workload.layers.back();
  task.workload.layers.pop_back();
  for (std::size_t first = 0; first < num_layers; ++first) {
    std::size_t end = first + 1;
    std::uint64_t bytes = request.layers[first].bytes;
    while (end < num_layers &&
           request.layers[end].bytes <= request.max_stage_bytes - std::min(bytes, request.max_stage_bytes)) {
      bytes += request.layers[end++].bytes;
    }
    task.limits.forward.push_back(static_cast<int>(end));
  }
  task.limits.backward = task.limits.forward;
  int& least = task.limits.least_fused_start;
  least = static_cast<int>(num_layers) - 1;
  const int max_fused = max_fused_layers(pipeline.settings, static_cast<int>(num_layers));
  while (least > request.limits.least_fused_start && least + max_fused >= static_cast<int>(num_layers) &&
         task.limits.forward[static_cast<std::size_t>(least) - 1] == static_cast<int>(num_layers)) {
    --least;
  }
  for (std::size_t first = 0; first + 1 < num_layers && !request.limits.forward.empty(); ++first) {
    task.limits.forward[first] = std::min(task.limits.forward[first], request.limits.forward[first]);
    task.limits.backward[first] = std::min(task.limits.backward[first], request.limits.backward[first]);
  }
  return fast_plan(task).plan;
}

void StagePlans::cut_alone(PipelinePlans& pipeline, bool measured) {
  if (pipeline.settings.by_hand) return;
  for (const PlanKind kind : kKinds) {
    if (kind == pipeline.main_kind || (measured && !knows_times(pipeline, kind))) continue;
    pipeline.plans[kind] =
        balanced_plans({request(pipeline, kind, measured)}, std::max(1, pipeline.settings.limits.min_stages),
                       pipeline.settings.limits.threshold)
            .front();
  }
}

}  // namespace rp
