// planner/plan_command.h
// `rp-plan plan`: whether a model fits given GPUs and host, its plan, and how fast it trains.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model_files/profile_file.h"
#include "planner/options.h"
#include "planner/prediction/run_prediction.h"
#include "planner/timeline/timeline_page.h"

namespace rp {

// One way to train, or why there is none.
struct PredictedRow {
  std::string name{};  // "4 GPUs"
  std::optional<RunPrediction> prediction{};
  std::string problem{};
};

struct PlanAnswer {
  TrainingSetup setup{};
  std::int64_t num_parameters = 0;
  std::int64_t num_trained = 0;
  PredictedRow asked{};
  std::vector<PredictedRow> by_gpus{};       // 1, 2, 4, 8, as far as there are, and what was asked
  std::vector<PredictedRow> by_fused{};      // wider and wider fused stages, whether they fit the GPU or not
  std::vector<FigureSource> efficiencies{};  // what the profile says of the kernels, and where it has that from
  std::int64_t longest_sequence = 0;         // with one sequence in a microbatch; 0: none
};

// Throws rp::Error: kUsage for an unknown preset or profile, kBadInput for a folder or file that is none. What does not
// fit is part of the answer. `for_page`: with what answer_page() draws.
[[nodiscard]] PlanAnswer answer_question(const ModelQuestion& question, Effort effort, bool for_page = false);

[[nodiscard]] std::string answer_text(const PlanAnswer& answer);
[[nodiscard]] std::string answer_json(const PlanAnswer& answer);
// Two steps with their copies and updates. REQUIRES: it was asked for_page.
[[nodiscard]] TimelinePage answer_page(const PlanAnswer& answer);

}  // namespace rp
