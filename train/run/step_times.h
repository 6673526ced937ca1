// train/run/step_times.h
// What is said at the end of a run of how long its steps took: as measured, and beside it what was to be expected.
#pragma once

#include <optional>
#include <string>

#include "roundpipe/plan.h"
#include "train/settings/settings.h"

namespace rp {

// What `rp-plan plan` says of these steps: from the model's shape and a profile, for the plan that they had.
struct PredictedStep {
  std::string profile{};  // its name
  double step_ms = 0;     // 0: none
  std::string problem{};  // why there is none
};

// `profile`: a name or a file. `plan`: as Pipeline::plan_text() gives it. `fp16_accumulation`: of the run, for fp16
// matrices. Never throws rp::Error: what is wrong is the problem.
[[nodiscard]] PredictedStep predict_step(const TrainSettings& settings, const std::string& profile,
                                         const std::string& plan, int num_workers, bool fp16_accumulation = false);

// Lines without the last one's end; empty where nothing was measured.
[[nodiscard]] std::string step_times_text(const StepTimes& times, const std::optional<PredictedStep>& predicted);

}  // namespace rp
