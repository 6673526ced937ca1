// Compares plans that are searched with the network between nodes with those that are searched without it, for the
// table of docs/design/several-nodes.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "common/text.h"
#include "model_files/profile_file.h"
#include "planner/prediction/run_prediction.h"
#include "planner/report_text.h"
#include "tests/common/documented_options.h"

namespace rp::test {
namespace {

struct Case {
  const char* model;
  int num_gpus;
  int num_nodes;
  int gbit;
  int microbatches;
  int sequences;  // of a microbatch
  bool asynchronous = false;
};

// Steps of one round for each node.
TrainingSetup setup_of(const Case& which) {
  return {.model = config_of_model(which.model),
          .gpu = gpu_profile("rtx4090").profile,
          .server = server_profile("xeon6330-8gpu").profile,
          .num_gpus = which.num_gpus,
          .num_nodes = which.num_nodes,
          .network = {.gbs = which.gbit / 8.0, .latency_us = 70},
          .host_bytes = 1e12,
          .batch = which.sequences * which.microbatches * which.num_nodes,
          .asynchronous = which.asynchronous,
          .round_microbatches = which.microbatches,
          .rounds_per_step = which.num_nodes,
          .recompute = RecomputeGrain::kStage};
}

std::string seconds_and_exposed(const RunPrediction& prediction) {
  return cat(decimal(prediction.run.step_ms / 1000, 2), " (",
             decimal(100 * std::max(0.0, 1 - prediction.without_network_ms / prediction.run.step_ms), 0), ")");
}

TEST(NodePlans, HaveTheStepsOfTheTable) {
  const std::vector<Case> cases = {
      {"qwen3-8b", 8, 2, 10, 8, 16},       {"qwen3-8b", 8, 2, 10, 16, 8},        {"qwen3-8b", 8, 2, 25, 8, 16},
      {"qwen3-8b", 8, 2, 25, 16, 8},       {"qwen3-8b", 8, 4, 10, 16, 8},        {"qwen3-8b", 8, 4, 25, 16, 8},
      {"qwen3-8b", 4, 2, 10, 8, 8},        {"qwen3-8b", 4, 4, 10, 8, 8},         {"qwen3-8b", 4, 4, 25, 8, 4},
      {"qwen3-8b", 2, 2, 10, 8, 4},        {"qwen3-8b", 2, 4, 10, 8, 2},         {"qwen3-1.7b", 8, 2, 10, 8, 8},
      {"qwen3-1.7b", 8, 4, 25, 16, 4},     {"qwen3-1.7b", 4, 2, 10, 8, 8},       {"qwen3-8b", 8, 4, 10, 16, 8, true},
      {"qwen3-8b", 8, 4, 25, 16, 8, true}, {"qwen3-1.7b", 8, 4, 10, 16, 8, true}};
  std::vector<std::string> rows;
  for (const Case& which : cases) {
    const TrainingSetup setup = setup_of(which);
    TrainingSetup alone = setup;
    alone.network = {};
    const RunPrediction without = predict_plan(setup, predict_run(alone, Effort::kFast).plan);
    const RunPrediction with = predict_run(setup, Effort::kFast);
    EXPECT_LE(with.run.step_ms, 1.01 * without.run.step_ms) << rows.size();
    const double gain = 100 * (1 - with.run.step_ms / without.run.step_ms);
    rows.push_back(cat("| on ", which.num_nodes, " nodes of ", which.num_gpus, " GPUs, ", which.gbit, " Gbit/s | ",
                       which.model, which.asynchronous ? ", asynchronous" : "", ", ", which.microbatches, " x ",
                       which.sequences, " | ", seconds_and_exposed(without), " | ", seconds_and_exposed(with), " | ",
                       decimal(std::abs(gain) < 0.05 ? 0 : gain, 1), " |"));
  }
  expect_documented("design/several-nodes.md", rows, "| on ");
}

}  // namespace
}  // namespace rp::test
