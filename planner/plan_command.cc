#include "planner/plan_command.h"

#include <algorithm>

#include "common/text.h"
#include "model_files/part_selection.h"
#include "planner/report_text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

PredictedRow row_of(std::string name, const TrainingSetup& setup, Effort effort) {
  PredictedRow row{.name = std::move(name)};
  try {
    row.prediction = predict_run(setup, effort);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kNoResource && error.code() != ExitCode::kUsage) throw;
    row.problem = error.what();
  }
  return row;
}

// Returns the setup with the split of the step and the recompute grain of a prediction, so that the
// rows of a table differ only in what the table is about.
TrainingSetup with_choices_of(TrainingSetup setup, const RunPrediction& prediction) {
  setup.round_microbatches = prediction.round_microbatches;
  setup.rounds_per_step = prediction.rounds_per_step;
  setup.recompute = prediction.recompute;
  return setup;
}

std::vector<PredictedRow> rows_by_nodes(const TrainingSetup& setup, const PredictedRow& asked) {
  std::vector<PredictedRow> rows;
  if (setup.num_nodes == 1) return rows;
  rows.push_back({.name = nodes_text(setup.num_nodes), .prediction = asked.prediction});
  int fewer = 1;
  while (fewer * 2 < setup.num_nodes) fewer *= 2;
  for (; fewer >= 1; fewer /= 2) {
    TrainingSetup same_step = with_choices_of(setup, *asked.prediction);
    same_step.records_spans = false;
    same_step.num_nodes = fewer;
    if (!is_planned(same_step)) break;
    PredictedRow row = row_of(nodes_text(fewer), same_step, Effort::kFast);
    if (row.prediction) rows.push_back(std::move(row));
  }
  std::ranges::reverse(rows);
  return rows;
}

}  // namespace

TrainingSetup setup_of(const ModelQuestion& question) {
  TrainingSetup setup{.model = config_of_model(question.model),
                      .gpu = gpu_profile(question.gpu).profile,
                      .server = server_profile(question.server).profile,
                      .num_gpus = question.num_gpus,
                      .num_nodes = question.num_nodes,
                      .network = question.network,
                      .sequence_length = question.sequence_length,
                      .batch = question.batch,
                      .parts = question.parts,
                      .asynchronous = question.asynchronous,
                      .accumulate = question.fp16_accumulate ? Accumulate::kFp16 : Accumulate::kFp32,
                      .pinned_weights = !question.pageable_weights,
                      .round_microbatches = question.round_microbatches,
                      .rounds_per_step = question.rounds_per_step,
                      .max_fused_layers = question.max_fused_layers,
                      .recompute = question.recompute};
  setup.host_bytes =
      question.host_bytes > 0 ? static_cast<double>(question.host_bytes) : setup.server.memory_gib * kGiB;
  return setup;
}

PlanAnswer answer_question(const ModelQuestion& question, Effort effort, bool for_page) {
  PlanAnswer answer{.setup = setup_of(question)};
  for (FigureSource& figure : gpu_profile(question.gpu).sources) {
    if (figure.key.ends_with("_efficiency")) answer.efficiencies.push_back(std::move(figure));
  }
  check_run_size(answer.setup);
  answer.setup.records_spans = for_page;
  const TrainingSetup& setup = answer.setup;
  const SelectionSummary selection = summarise(setup.model, setup.parts);
  answer.num_parameters = selection.num_parameters;
  answer.num_trained = selection.num_trained;
  answer.asked = row_of("asked", setup, effort);
  answer.longest_sequence = longest_sequence(setup);
  if (!answer.asked.prediction) return answer;
  std::vector<int> counts = {1, 2, 4, 8};
  std::erase_if(counts, [&setup](int count) { return count >= setup.num_gpus; });
  for (const int count : counts) {
    TrainingSetup fewer = setup;
    fewer.records_spans = false;
    fewer.num_gpus = count;
    answer.by_gpus.push_back(row_of(cat(count, count == 1 ? " GPU" : " GPUs"), fewer, Effort::kFast));
  }
  answer.by_gpus.push_back(
      {.name = cat(setup.num_gpus, setup.num_gpus == 1 ? " GPU" : " GPUs"), .prediction = answer.asked.prediction});
  answer.by_nodes = rows_by_nodes(setup, answer.asked);
  const int num_body_layers = answer.asked.prediction->num_layers - 1;
  for (const int layers : {0, 1, 2, 4, 8, 16}) {
    if (layers >= num_body_layers) break;
    TrainingSetup wider = with_choices_of(setup, *answer.asked.prediction);
    wider.records_spans = false;
    wider.exact_fused_layers = layers;
    answer.by_fused.push_back(row_of(cat("head", layers == 0 ? " alone" : cat(" and ", layers)), wider, Effort::kFast));
  }
  return answer;
}

}  // namespace rp
