// planner/prediction/run_prediction.h
// Predicts how a model would train on given GPUs: the plan, its memory, and how the time is spent.
// No GPU is needed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/network_profile.h"
#include "model_files/config/model_config.h"
#include "model_files/layer_costs.h"
#include "roundpipe/trained_parts.h"
#include "scheduler/gpu_memory.h"
#include "scheduler/gpu_profile.h"
#include "scheduler/host_memory.h"
#include "scheduler/plan.h"
#include "scheduler/simulation/run_record.h"

namespace rp {

// How long to search for plans.
enum class Effort { kFast, kThorough, kForever };

struct TrainingSetup {
  ModelConfig model{};
  GpuProfile gpu{};
  ServerProfile server{};
  int num_gpus = 8;   // of each node
  int num_nodes = 1;  // equal ones, which share the rounds of each step
  NetworkProfile network{};
  double host_bytes = 0;  // host memory of a node that a run may use
  std::int64_t sequence_length = 2048;
  int batch = 128;  // sequences per step, on all nodes
  TrainedParts parts{};
  bool asynchronous = false;
  Accumulate accumulate = Accumulate::kFp32;
  bool pinned_weights = true;
  int round_microbatches = 0;                 // 0: proposed
  int rounds_per_step = 0;                    // of all nodes; 0: proposed
  int max_fused_layers = 2;                   // in addition to the head
  std::optional<RecomputeGrain> recompute{};  // nullopt: chosen by the search
  bool records_spans = false;                 // true: RunPrediction::run has spans
  int exact_fused_layers = -1;                // exactly this many, even if they do not fit the GPU; -1: as planned
};

// The largest problems that are planned: the number of decoder layers, decoder layers times GPUs,
// and layers (with embedding and head) times microbatches that a node computes of a step.
inline constexpr std::int64_t kMaxPlannedLayers = 1024, kMaxLayerGpus = 8192, kMaxLayerMicrobatchesOfARun = 32'768;

// Steps of a simulated run before the counted steps, and the counted steps. Runs with many tasks
// per step count fewer.
inline constexpr RunLength kPredictedLength{.warm_up = 4, .steps = 8};

// For several nodes: what the first one does. Its GPUs and host are those of any other node.
struct RunPrediction {
  int num_gpus = 0;
  int num_nodes = 1;
  int round_microbatches = 0;
  int rounds_per_step = 0;
  double microbatch_sequences = 0;  // sequences in a microbatch, on average
  RecomputeGrain recompute = RecomputeGrain::kStage;
  bool is_held_by_host = false;  // stages are longer than in faster plans, which need more memory than the host has
  Plan plan{};                   // counts the head as a layer after the embedding and the decoder layers
  int num_layers = 0;            // of the plan, including the head
  GpuMemory gpu{};
  HostMemory host{};
  RunResult run{};
  double lower_bound_ms = 0;      // of a step with this plan, in any order of its stages
  double tokens_per_s = 0;        // of all nodes together
  double without_network_ms = 0;  // of a step if messages took no time; on one node run.step_ms

  // The time of a step in which the network moves data, in the busier direction.
  [[nodiscard]] double network_ms() const { return std::max(run.sending_ms, run.receiving_ms); }
  [[nodiscard]] int fused_layers() const { return num_layers - 1 - plan.fused_start; }  // without the head
};

[[nodiscard]] bool fits_host(const TrainingSetup& setup, const RunPrediction& prediction);

// Throws rp::Error (kUsage) naming the limit if the model or the step would take too long to
// simulate, or if there are too few rounds for the nodes.
void check_run_size(const TrainingSetup& setup);
// Returns true if it does not throw.
[[nodiscard]] bool is_planned(const TrainingSetup& setup);

// Returns the costs by layer for one microbatch of `sequences` sequences. Throws rp::Error
// (kUsage).
[[nodiscard]] std::vector<LayerCost> costs_of(const TrainingSetup& setup, double sequences);

// Returns the fastest run that is found. Backward stages recompute by stage, or by layer if that is
// faster and fits the host. Recompute by layer is tried only if the GPU's memory limits the length
// of some stage, and allows a longer one by layer. If the fastest run does not fit the host, the
// stages are made longer, so that fewer activations are kept; if none fits, the run that needs the
// least host memory is returned. Throws rp::Error: kNoResource if nothing fits the GPU, naming
// remedies; kUsage if the batch is too small for the microbatches or nodes.
[[nodiscard]] RunPrediction predict_run(const TrainingSetup& setup, Effort effort);

// Returns the prediction for exactly this plan. REQUIRES: round_microbatches, rounds_per_step and
// recompute are given. Throws rp::Error (kUsage) if the plan is not for this model.
[[nodiscard]] RunPrediction predict_plan(const TrainingSetup& setup, const Plan& plan);

// Returns the longest sequence, a multiple of 256, whose training fits GPU and host with one
// sequence in a microbatch and as many microbatches in a round as there are GPUs; 0 if none fits.
// On the GPU both recompute grains fit the same sequences: they differ only in stages of several
// layers, and stages of one layer need the least memory. On the host, recompute by stage fits longer ones.
[[nodiscard]] std::int64_t longest_sequence(const TrainingSetup& setup);

}  // namespace rp
