#include "planner/published_runs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/text.h"
#include "model_files/profile_file.h"
#include "scheduler/plan_seeds.h"
#include "scheduler/simulation/machine_run.h"
#include "scheduler/simulation/run_simulator.h"

namespace rp {

namespace {

constexpr const char* kGpu = "rtx4090";
constexpr const char* kServer = "xeon6330-8gpu";
constexpr double kHostBytes = 800e9;

// A model's row of the tables: settings, and tokens/s with synchronous steps on 8 GPUs, then with
// asynchronous steps on 8, 4, 2 and 1.
struct PublishedModel {
  const char* preset = "";
  int batch = 0, round_microbatches = 0, rounds_per_step = 0, lora_rank = 0;
  bool pinned_weights = true, has_experts = false;
  double synchronous = 0;
  std::array<double, 4> asynchronous{};  // 0: not published
};

constexpr std::array<int, 4> kPublishedGpus = {8, 4, 2, 1};
constexpr std::array<PublishedModel, 5> kPublishedModels = {{
    {.preset = "qwen3-1.7b",
     .batch = 512,
     .round_microbatches = 10,
     .rounds_per_step = 4,
     .synchronous = 56489,
     .asynchronous = {65417, 33178, 17026, 8881}},
    {.preset = "llama3.1-8b",
     .batch = 256,
     .round_microbatches = 10,
     .rounds_per_step = 2,
     .synchronous = 18888,
     .asynchronous = {24275, 12278, 6259, 3142}},
    {.preset = "gpt-oss-20b",
     .batch = 128,
     .round_microbatches = 16,
     .rounds_per_step = 1,
     .has_experts = true,
     .synchronous = 12549,
     .asynchronous = {18122}},
    {.preset = "qwen3-32b",
     .batch = 128,
     .round_microbatches = 10,
     .rounds_per_step = 2,
     .synchronous = 4164,
     .asynchronous = {5516, 2897, 1476, 740}},
    {.preset = "qwen3-235b",
     .batch = 64,
     .round_microbatches = 10,
     .rounds_per_step = 1,
     .lora_rank = 32,
     .pinned_weights = false,
     .has_experts = true,
     .synchronous = 1592,
     .asynchronous = {1820, 1281, 808, 480}},
}};

// Router and experts had LoRA pairs in the published run: docs/design/cost-model.md.
// The original keeps all weights in 16 bits.
TrainedParts parts_of(int lora_rank) {
  return {.lora = {.rank = lora_rank, .on_experts = lora_rank > 0}, .frozen_weights = FrozenWeights::kNone};
}

TrainingSetup setup_of(const PublishedRun& published) {
  return {.model = preset_config(published.preset),
          .gpu = gpu_profile(kGpu).profile,
          .server = server_profile(kServer).profile,
          .num_gpus = published.num_gpus,
          .host_bytes = kHostBytes,
          .sequence_length = kPublishedSequenceLength,
          .batch = published.batch,
          .parts = parts_of(published.lora_rank),
          .asynchronous = published.asynchronous,
          .accumulate = Accumulate::kFp16,
          .pinned_weights = published.pinned_weights,
          .round_microbatches = published.round_microbatches,
          .rounds_per_step = published.rounds_per_step,
          .recompute = RecomputeGrain::kStage};
}

// Returns a text such as "+ 3.4 %".
std::string distance_text(double ratio) {
  const double percent = 100 * (ratio - 1);
  return cat(percent < 0 ? "- " : "+ ", decimal(std::abs(percent), 1), " %");
}

std::string name_of(const std::string& preset, int lora_rank) { return lora_rank > 0 ? cat(preset, " LoRA") : preset; }

}  // namespace

std::vector<PublishedRun> published_runs() {
  std::vector<PublishedRun> runs;
  for (const PublishedModel& model : kPublishedModels) {
    const auto add = [&](int num_gpus, bool asynchronous, double tokens_per_s) {
      PublishedRun run;
      run.preset = model.preset;
      run.num_gpus = num_gpus;
      run.asynchronous = asynchronous;
      run.batch = model.batch;
      run.round_microbatches = model.round_microbatches;
      run.rounds_per_step = model.rounds_per_step;
      run.lora_rank = model.lora_rank;
      run.pinned_weights = model.pinned_weights;
      run.has_experts = model.has_experts;
      run.tokens_per_s = tokens_per_s;
      runs.push_back(run);
    };
    add(kPublishedGpus.front(), false, model.synchronous);
    for (std::size_t i = 0; i < kPublishedGpus.size(); ++i) {
      if (model.asynchronous[i] > 0) add(kPublishedGpus[i], true, model.asynchronous[i]);
    }
  }
  return runs;
}

std::vector<PublishedLength> published_lengths() {
  constexpr std::array<std::int64_t, kPublishedModels.size()> kThousands = {73, 49, 39, 28, 31};
  std::vector<PublishedLength> lengths(kThousands.size());
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    lengths[i].preset = kPublishedModels[i].preset;
    lengths[i].lora_rank = kPublishedModels[i].lora_rank;
    lengths[i].thousands = kThousands[i];
  }
  return lengths;
}

PredictedThroughput predict_as_published(const PublishedRun& published) {
  const CostSettings settings{
      .sequences = static_cast<double>(published.batch) / (published.round_microbatches * published.rounds_per_step),
      .sequence_length = kPublishedSequenceLength,
      .parts = parts_of(published.lora_rank),
      .elementwise = Elementwise::kEager};
  const std::vector<LayerCost> costs = layer_costs(preset_config(published.preset), settings);
  const MachineRun run{.gpu = gpu_profile(kGpu).profile,
                       .server = server_profile(kServer).profile,
                       .num_gpus = published.num_gpus,
                       .accumulate = Accumulate::kFp16,
                       .host = {.asynchronous = published.asynchronous,
                                .rounds_per_step = published.rounds_per_step,
                                .num_microbatches = published.round_microbatches},
                       .pinned_weights = published.pinned_weights};
  const RunWork work = run_work(costs, run);
  const Plan plan = plan_of(greedy_cuts(StageSums(work.workload), published.num_gpus, 0));
  PredictedThroughput result{.run = simulate_run(work, stage_works(work.workload, plan), {.warm_up = 3, .steps = 8})};
  result.tokens_per_s = 1000.0 * published.batch * kPublishedSequenceLength / result.run.step_ms;
  return result;
}

RunPrediction predict_ours(const PublishedRun& published) { return predict_run(setup_of(published), Effort::kFast); }

double PublishedComparison::mean_distance(bool has_experts, bool asynchronous) const {
  double sum = 0;
  int count = 0;
  for (const ComparedRun& run : runs) {
    const PublishedRun& of = run.published;
    if (of.has_experts != has_experts || of.asynchronous != asynchronous || of.num_gpus == 1) continue;
    sum += std::abs(run.as_published_tokens_per_s / run.published.tokens_per_s - 1);
    ++count;
  }
  return sum / std::max(count, 1);
}

PublishedComparison compare_published() {
  PublishedComparison comparison;
  for (const PublishedRun& run : published_runs()) {
    comparison.runs.push_back({.published = run,
                               .as_published_tokens_per_s = predict_as_published(run).tokens_per_s,
                               .ours_tokens_per_s = predict_ours(run).tokens_per_s});
  }
  for (const PublishedLength& length : published_lengths()) {
    const TrainingSetup setup = setup_of({.preset = length.preset, .batch = 8, .lora_rank = length.lora_rank});
    comparison.lengths.push_back({.published = length, .ours = longest_sequence(setup)});
  }
  return comparison;
}

std::string published_text(const PublishedComparison& comparison) {
  std::ostringstream out;
  out << "RoundPipe's published runs (arXiv 2604.27085) on " << kGpu << "s, sequences of " << kPublishedSequenceLength
      << " tokens, fp16 sums; tokens/s.\n"
         "  predicted: the model of costs for the published run itself, with its kernels (one for each elementwise "
         "operation) and its\n"
         "    stages, whatever memory they need. Its distance from the published figure is what the model of costs is "
         "wrong by.\n"
         "  ours: the same step with the kernels and the plan of this program. No run of it on a GPU has been compared "
         "yet.\n"
         "  *: with matrix products and elementwise operations calibrated by this cell.\n\n"
      << std::left << std::setw(18) << "model" << std::setw(7) << "steps" << std::right << std::setw(4) << "GPUs"
      << std::setw(11) << "published" << std::setw(11) << "predicted" << std::setw(11) << "distance" << std::setw(9)
      << "ours" << std::setw(18) << "ours / published"
      << "\n";
  for (const ComparedRun& run : comparison.runs) {
    const PublishedRun& published = run.published;
    const bool is_calibration = published.num_gpus == 1 && !published.has_experts;
    out << std::left << std::setw(18) << name_of(published.preset, published.lora_rank) << std::setw(7)
        << (published.asynchronous ? "async" : "sync") << std::right << std::setw(4) << published.num_gpus
        << std::setw(11) << decimal(published.tokens_per_s, 0) << std::setw(11)
        << decimal(run.as_published_tokens_per_s, 0) << std::setw(10)
        << distance_text(run.as_published_tokens_per_s / published.tokens_per_s) << (is_calibration ? "*" : " ")
        << std::setw(9) << decimal(run.ours_tokens_per_s, 0) << std::setw(18)
        << decimal(run.ours_tokens_per_s / published.tokens_per_s, 2) << "\n";
  }
  const auto mean = [&comparison](bool has_experts, bool asynchronous) {
    return cat(decimal(100 * comparison.mean_distance(has_experts, asynchronous), 1), " %");
  };
  out << "Mean distance on 2 GPUs and more: dense models " << mean(false, true) << " async, " << mean(false, false)
      << " sync; models with experts " << mean(true, true) << " async, " << mean(true, false)
      << " sync: what those\nwait for is not in the model of costs.\n\n"
      << "Longest sequence on 8 GPUs, thousands of tokens, 800 GB of host memory; by formulas, no run of it has been "
         "compared.\n"
      << std::left << std::setw(18) << "model" << std::right << std::setw(11) << "published" << std::setw(9) << "ours"
      << "\n";
  for (const ComparedLength& length : comparison.lengths) {
    out << std::left << std::setw(18) << name_of(length.published.preset, length.published.lora_rank) << std::right
        << std::setw(11) << length.published.thousands << std::setw(9) << length.ours / 1000 << "\n";
  }
  return out.str();
}

std::string published_json(const PublishedComparison& comparison) {
  nlohmann::ordered_json json;
  json["source"] = "arXiv 2604.27085";
  for (const ComparedRun& run : comparison.runs) {
    const PublishedRun& published = run.published;
    json["runs"].push_back({{"model", published.preset},
                            {"lora_rank", published.lora_rank},
                            {"asynchronous", published.asynchronous},
                            {"gpus", published.num_gpus},
                            {"published_tokens_per_s", published.tokens_per_s},
                            {"predicted_tokens_per_s", run.as_published_tokens_per_s},
                            {"ours_tokens_per_s", run.ours_tokens_per_s}});
  }
  for (const bool asynchronous : {true, false}) {
    const std::string steps = asynchronous ? "async" : "sync";
    json["mean_distance"][steps] = {{"dense", comparison.mean_distance(false, asynchronous)},
                                    {"experts", comparison.mean_distance(true, asynchronous)}};
  }
  for (const ComparedLength& length : comparison.lengths) {
    json["longest_sequences"].push_back({{"model", length.published.preset},
                                         {"lora_rank", length.published.lora_rank},
                                         {"published_thousands", length.published.thousands},
                                         {"ours", length.ours}});
  }
  return json.dump() + "\n";
}

std::string experts_distance_text() {
  const std::vector<PublishedRun> runs = published_runs();
  std::string text;
  for (const PublishedRun& run : runs) {
    if (!run.has_experts || !run.asynchronous || run.num_gpus != 8) continue;
    const double predicted = predict_as_published(run).tokens_per_s;
    text +=
        cat(text.empty() ? "" : ", ", name_of(run.preset, run.lora_rank), " published ", decimal(run.tokens_per_s, 0),
            ", predicted ", decimal(predicted, 0), " (", decimal(predicted / run.tokens_per_s, 2), " times)");
  }
  return cat("models with experts are slower than predicted; of the published runs on 8 ", kGpu, "s: ", text);
}

}  // namespace rp
