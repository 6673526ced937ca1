// train/run/run_summary.h
// What is said of a run's steps when it ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/output/step_report.h"
#include "train/run/evaluation_record.h"

namespace rp {

// Gathers the steps and evaluations of this start of a run.
class RunSummary {
 public:
  void add(const StepReport& report);
  void add(const EvaluationReport& report);

  // Lines without the last newline; "" without steps. `record`: of the whole run.
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
