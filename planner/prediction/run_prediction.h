// planner/prediction/run_prediction.h
// How a model would train on given GPUs: the plan, its memory, and where the time goes. Nothing of it needs a GPU.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model_files/config/model_config.h"
#include "model_files/layer_costs.h"
#include "roundpipe/trained_parts.h"
#include "scheduler/gpu_memory.h"
#include "scheduler/gpu_profile.h"
#include "scheduler/host_memory.h"
#include "scheduler/plan.h"
#include "scheduler/simulation/run_record.h"

namespace rp {

// How long plans are searched for.
enum class Effort { kFast, kThorough, kForever };

struct TrainingSetup {
  ModelConfig model{};
  GpuProfile gpu{};
  ServerProfile server{};
  int num_gpus = 8;
  double host_bytes = 0;  // that a run may use
  std::int64_t sequence_length = 2048;
  int batch = 128;  // sequences of a step
  TrainedParts parts{};
  bool asynchronous = false;
  Accumulate accumulate = Accumulate::kFp32;
  bool pinned_weights = true;
  int round_microbatches = 0;                 // 0: proposed
  int rounds_per_step = 0;                    // 0: proposed
  int max_fused_layers = 2;                   // beside the head
  std::optional<RecomputeGrain> recompute{};  // nullopt: chosen
  bool records_spans = false;                 // of the prediction's run
  int exact_fused_layers = -1;                // that many, whether they fit the GPU or not; -1: as they are planned
};

// The largest that is planned: decoder layers, decoder layers times GPUs, and layers (with embedding and head) times
// microbatches of a step.
inline constexpr std::int64_t kMaxPlannedLayers = 1024, kMaxLayerGpus = 8192, kMaxLayerMicrobatchesOfARun = 32'768;

// Steps of a simulated run before the counted ones, and these; fewer of these where a step has many tasks.
inline constexpr RunLength kPredictedLength{.warm_up = 4, .steps = 8};

struct RunPrediction {
  int num_gpus = 0;
  int round_microbatches = 0;
  int rounds_per_step = 0;
  double microbatch_sequences = 0;  // on average
  RecomputeGrain recompute = RecomputeGrain::kStage;
  Plan plan{};         // counts the head as a layer behind embedding and decoder layers
  int num_layers = 0;  // of the plan
  GpuMemory gpu{};
  HostMemory host{};
  RunResult run{};
  double lower_bound_ms = 0;  // of a step with this plan, whatever the order
  double tokens_per_s = 0;

  [[nodiscard]] int fused_layers() const { return num_layers - 1 - plan.fused_start; }  // beside the head
};

[[nodiscard]] bool fits_host(const TrainingSetup& setup, const RunPrediction& prediction);

// Throws rp::Error (kUsage) with the limit for a model or a step that takes too long to simulate.
void check_run_size(const TrainingSetup& setup);

// With one microbatch of so many sequences. Throws rp::Error (kUsage).
[[nodiscard]] std::vector<LayerCost> costs_of(const TrainingSetup& setup, double sequences);

// The fastest that is found. Backward stages recompute by stage, or by layer where that is faster and fits the host; it
// is tried where the GPU's memory keeps a stage from being longer, and would not by layer. Throws rp::Error:
// kNoResource if nothing fits the GPU, saying what would, kUsage if the batch is too small for the microbatches.
[[nodiscard]] RunPrediction predict_run(const TrainingSetup& setup, Effort effort);

// With this plan, which is kept. REQUIRES: round_microbatches, rounds_per_step and recompute are given. Throws
// rp::Error (kUsage) for a plan that is not the model's.
[[nodiscard]] RunPrediction predict_plan(const TrainingSetup& setup, const Plan& plan);

// The longest sequence whose training fits GPU and host with one sequence in a microbatch and as many of them as GPUs
// in a round; a multiple of 256, 0 if none fits. The same for both grains of recompute: they differ in stages of
// several layers only, and what needs the least memory are stages of one.
[[nodiscard]] std::int64_t longest_sequence(const TrainingSetup& setup);

}  // namespace rp
