// tests/model_files/published_scaling.h
// The published throughput of RoundPipe on 1 to 8 GPUs (arXiv 2604.27085), and what is predicted from the models' shapes and the
// machine's profile, with the cuts that the Python version makes. docs/design/cost-model.md.
#pragma once

#include <string>
#include <vector>

#include "model_files/layer_costs.h"
#include "model_files/profile_file.h"
#include "scheduler/modelled_run.h"
#include "scheduler/plan_seeds.h"
#include "scheduler/run_simulator.h"

namespace rp::test {

struct PublishedModel {
  std::string preset{};
  int batch = 0;  // sequences of 2048 tokens in a step
  int rounds = 0;
  int lora_rank = 0;
  bool is_dense = true;
  std::vector<double> tokens_per_s{};  // on kPublishedGpus
};

inline constexpr int kPublishedGpus[] = {1, 2, 4, 8};

inline std::vector<PublishedModel> published_models() {
  return {
      {.preset = "qwen3-1.7b", .batch = 512, .rounds = 4, .tokens_per_s = {8881, 17026, 33178, 65417}},
      {.preset = "llama3.1-8b", .batch = 256, .rounds = 2, .tokens_per_s = {3142, 6259, 12278, 24275}},
      {.preset = "qwen3-32b", .batch = 128, .rounds = 2, .tokens_per_s = {740, 1476, 2897, 5516}},
      {.preset = "qwen3-235b", .batch = 64, .rounds = 1, .lora_rank = 32, .is_dense = false, .tokens_per_s = {480, 808, 1281, 1820}},
  };
}

struct PredictedRun {
  double tokens_per_s = 0;
  RunResult run;
};

inline PredictedRun predict_published(const PublishedModel& model, int num_gpus) {
  constexpr int kMicrobatches = 10, kSequenceLength = 2048;
  const CostSettings settings{.sequences = static_cast<double>(model.batch) / (kMicrobatches * model.rounds),
                              .sequence_length = kSequenceLength,
                              .parts = {.lora = {.rank = model.lora_rank, .on_experts = true}},
                              .elementwise = Elementwise::kEager};
  const std::vector<LayerCost> costs = layer_costs(preset_config(model.preset), settings);
  const ModelledRun run{.gpu = gpu_profile("rtx4090").profile, .server = server_profile("xeon6330-8gpu").profile,
                        .num_gpus = num_gpus, .accumulate = Accumulate::kFp16,
                        .host = {.asynchronous = true, .rounds_per_step = model.rounds, .num_microbatches = kMicrobatches},
                        .pinned_weights = model.is_dense};
  const RunWork work = modelled_run(costs, run);
  const Plan plan = plan_of(greedy_cuts(StageSums(work.workload), num_gpus, 0));
  PredictedRun result{.run = simulate_run(work, stage_works(work.workload, plan), {.warm_up = 3, .steps = 8})};
  result.tokens_per_s = 1000.0 * model.batch * kSequenceLength / result.run.step_ms;
  return result;
}

}  // namespace rp::test
