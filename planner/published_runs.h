// planner/published_runs.h
// What was published of RoundPipe's runs (arXiv 2604.27085), next to what is predicted for them: `rp-plan compare
// --published`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/prediction/run_prediction.h"

namespace rp {

// A cell of the published tables: full training or LoRA with sequences of 2048 tokens on RTX 4090s of 24 GB behind one
// Xeon Gold 6330.
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
  std::int64_t thousands = 0;  // of tokens
};
[[nodiscard]] std::vector<PublishedLength> published_lengths();

// What the run's own kernels and cuts make in the model of costs: each elementwise operation a kernel, stages of the
// Python version.
struct PredictedThroughput {
  RunResult run{};
  double tokens_per_s = 0;
};
[[nodiscard]] PredictedThroughput predict_as_published(const PublishedRun& published);

// The same step with our kernels, and our plan within the GPU's memory.
[[nodiscard]] RunPrediction predict_ours(const PublishedRun& published);

struct ComparedRun {
  PublishedRun published{};
  double as_published_tokens_per_s = 0;
  double ours_tokens_per_s = 0;
};
struct ComparedLength {
  PublishedLength published{};
  std::int64_t ours = 0;  // tokens
};
struct PublishedComparison {
  std::vector<ComparedRun> runs{};
  std::vector<ComparedLength> lengths{};

  // Mean distance of as_published from the published figure, as a fraction; of dense models or those with experts,
  // synchronous steps or asynchronous ones, on more than one GPU: the single-GPU column of dense models is what the
  // profile was made from. 0: there are none.
  [[nodiscard]] double mean_distance(bool has_experts, bool asynchronous) const;
};
[[nodiscard]] PublishedComparison compare_published();

[[nodiscard]] std::string published_text(const PublishedComparison& comparison);
[[nodiscard]] std::string published_json(const PublishedComparison& comparison);

// How far the nearest published run with experts is from its prediction, as a sentence.
[[nodiscard]] std::string experts_distance_text();

}  // namespace rp
