// train/run/run_summary.h
// Gathers losses and token counts for the report at the end of a run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/output/step_report.h"
#include "train/run/evaluation_record.h"

namespace rp {

// Gathers the steps and evaluations since this start of the run, without earlier parts of a resumed
// run.
class RunSummary {
 public:
  void add(const StepReport& report);
  void add(const EvaluationReport& report);

  // Returns the report's lines without the last newline; "" if there were no steps. `record`: the
  // evaluations of the whole run.
  [[nodiscard]] std::string text(const EvaluationRecord& record, double seconds) const;

 private:
  struct Point {
    std::int64_t step = 0;
    double loss = 0;
  };
  std::optional<Point> first_, last_, best_;
  std::optional<Point> first_evaluation_, last_evaluation_;
  std::int64_t num_steps_ = 0;
  std::int64_t tokens_ = 0, trained_tokens_ = 0, padded_tokens_ = 0;
};

}  // namespace rp
