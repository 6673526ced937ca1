// train/run/step_times.h
// Reports at the end of a run how long its steps took, next to the predicted time.
#pragma once

#include <optional>
#include <string>

#include "roundpipe/plan.h"
#include "train/settings/settings.h"

namespace rp {

// The time of a step as `rp-plan plan` predicts it, from the model's shape, a profile and the run's
// plan.
struct PredictedStep {
  std::string profile{};  // name of the profile
  double step_ms = 0;     // 0: no prediction
  std::string problem{};  // why there is no prediction; else empty
};

// Predicts the time of a step. `profile`: a name or a file. `plan`: as Pipeline::plan_text()
// returns it. `num_workers`: of each of the nodes. `fp16_accumulation`: whether the run sums products of
// fp16 matrices in fp16. `network`: between the nodes (network_of()); if it is empty, its time is left out. Never
// throws rp::Error: stores its message as the problem instead.
[[nodiscard]] PredictedStep predict_step(const TrainSettings& settings, const std::string& profile,
                                         const std::string& plan, int num_workers, bool fp16_accumulation = false,
                                         int num_nodes = 1, const std::string& network = "");

// Returns the report's lines without the last newline; empty if nothing was measured.
[[nodiscard]] std::string step_times_text(const StepTimes& times, const std::optional<PredictedStep>& predicted);

}  // namespace rp
