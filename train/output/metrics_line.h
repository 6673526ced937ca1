// train/output/metrics_line.h
// What metrics.jsonl, metrics.csv and evaluations.jsonl say of a step or an evaluation.
#pragma once

#include <string>

#include "train/output/step_report.h"

namespace rp {

// The JSON object of one step. Losses have 17 significant digits: equal text means equal bits. A number that is not
// finite is null.
[[nodiscard]] std::string metrics_line(const StepReport& report);

// The same as comma-separated values, under these names. What a run does not have is empty.
[[nodiscard]] std::string metrics_csv_header();
[[nodiscard]] std::string metrics_csv_line(const StepReport& report);

// The JSON object of one evaluation.
[[nodiscard]] std::string evaluation_line(const EvaluationReport& report);

}  // namespace rp
