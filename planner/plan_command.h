// planner/plan_command.h
// `rp-plan plan`: predicts whether a model fits given GPUs and host, its plan, and how fast it
// trains.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model_files/profile_file.h"
#include "planner/options.h"
#include "planner/prediction/run_prediction.h"

namespace rp {

// The prediction for one variant of the training, or why there is none.
struct PredictedRow {
  std::string name{};  // such as "4 GPUs"
  std::optional<RunPrediction> prediction{};
  std::string problem{};
};

struct PlanAnswer {
  TrainingSetup setup{};
  std::int64_t num_parameters = 0;
  std::int64_t num_trained = 0;
  PredictedRow asked{};
  std::vector<PredictedRow> by_gpus{};  // those of 1, 2, 4, 8 below the number asked for, and that number
  // The same step, so the same bits, on fewer nodes: those of 1, 2, 4, ... below the number asked for
  // that are not too few to simulate, and that number; empty on one node.
  std::vector<PredictedRow> by_nodes{};
  std::vector<PredictedRow> by_fused{};      // longer and longer fused stages, including those that do not fit the GPU
  std::vector<FigureSource> efficiencies{};  // the efficiencies of kernels in the profile, with their sources
  std::int64_t longest_sequence = 0;         // in tokens, with one sequence in a microbatch; 0: none fits
};

// Returns the setup that a question is about. Throws as answer_question().
[[nodiscard]] TrainingSetup setup_of(const ModelQuestion& question);

// Answers `rp-plan plan`. What does not fit is part of the answer. `for_page`: includes what
// answer_page() draws (plan_report.h). Throws rp::Error: kUsage for an unknown preset or profile, kBadInput for a
// folder or file that does not contain one.
[[nodiscard]] PlanAnswer answer_question(const ModelQuestion& question, Effort effort, bool for_page = false);

}  // namespace rp
