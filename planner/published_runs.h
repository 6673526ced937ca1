// planner/published_runs.h
// `rp-plan compare --published`: RoundPipe's published runs (arXiv 2604.27085) next to the
// predictions for them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/prediction/run_prediction.h"

namespace rp {

// One cell of the published tables: full training or LoRA with sequences of 2048 tokens on RTX
// 4090s of 24 GB in a server with a Xeon Gold 6330.
struct PublishedRun {
  std::string preset{};
  int num_gpus = 8;
  bool asynchronous = true;
  int batch = 0;  // sequences of a step
  int round_microbatches = 0;
  int rounds_per_step = 0;
  int lora_rank = 0;  // 0: all parameters are trained
  bool pinned_weights = true;
  bool has_experts = false;
  double tokens_per_s = 0;
};
[[nodiscard]] std::vector<PublishedRun> published_runs();

inline constexpr int kPublishedSequenceLength = 2048;

struct PublishedLength {
  std::string preset{};
  int lora_rank = 0;
  std::int64_t thousands = 0;  // thousands of tokens
};
[[nodiscard]] std::vector<PublishedLength> published_lengths();

// Returns the prediction of the cost model for the published run itself, with its kernels (one for
// each elementwise operation) and the stages of the Python version.
struct PredictedThroughput {
  RunResult run{};
  double tokens_per_s = 0;
};
[[nodiscard]] PredictedThroughput predict_as_published(const PublishedRun& published);

// Returns the prediction for the same step with this program's kernels, and its plan within the
// GPU's memory.
[[nodiscard]] RunPrediction predict_ours(const PublishedRun& published);

struct ComparedRun {
  PublishedRun published{};
  double as_published_tokens_per_s = 0;
  double ours_tokens_per_s = 0;
};
struct ComparedLength {
  PublishedLength published{};
  std::int64_t ours = 0;  // in tokens
};
struct PublishedComparison {
  std::vector<ComparedRun> runs{};
  std::vector<ComparedLength> lengths{};

  // Returns the mean distance of as_published_tokens_per_s from the published figure, as a fraction
  // of it, over the runs on more than one GPU of dense models or models with experts, and of
  // synchronous or asynchronous steps. Runs on one GPU are left out, since those of dense models
  // were used to calibrate the profile. 0: there are no such runs.
  [[nodiscard]] double mean_distance(bool has_experts, bool asynchronous) const;
};
[[nodiscard]] PublishedComparison compare_published();

[[nodiscard]] std::string published_text(const PublishedComparison& comparison);
[[nodiscard]] std::string published_json(const PublishedComparison& comparison);

// Returns a sentence with the published and the predicted throughput of the runs of models with
// experts on 8 GPUs.
[[nodiscard]] std::string experts_distance_text();

}  // namespace rp
