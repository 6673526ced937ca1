// train/output/metrics_line.h
// Formats steps and evaluations as lines of metrics.jsonl, metrics.csv and evaluations.jsonl.
#pragma once

#include <string>

#include "train/output/step_report.h"

namespace rp {

// Returns the JSON object of one step. Losses have 17 significant digits: equal text means equal
// bits. A number that is not finite is null.
[[nodiscard]] std::string metrics_line(const StepReport& report);

// The first line of metrics.csv with the names of the values, and the line of one step. A value
// that the run does not have, or that is not finite, is empty.
[[nodiscard]] std::string metrics_csv_header();
[[nodiscard]] std::string metrics_csv_line(const StepReport& report);

// Returns the JSON object of one evaluation.
[[nodiscard]] std::string evaluation_line(const EvaluationReport& report);

}  // namespace rp
