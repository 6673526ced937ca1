// train/accepted_step.h
// Submits the rounds and the update of a step, in trained and in emulated runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "roundpipe/pipeline.h"
#include "train/data/sequences.h"
#include "train/settings/settings.h"

namespace rp {

// A step that was accepted and whose results have not been read yet.
struct AcceptedStep {
  std::int64_t step = 0;
  double learning_rate = 0;
  std::int64_t tokens = 0;
  std::int64_t trained_tokens = 0;
  std::uint64_t epoch = 0;
  std::vector<RoundResult> rounds{};
  std::optional<StepResult> result{};
};

// Accepts the rounds of a step, which split `batch`, and its update. Does not wait for their results.
// `restart_data`: as of StepOptions.
[[nodiscard]] AcceptedStep accept_step(Pipeline& pipeline, const TrainSettings& settings, std::int64_t step,
                                       TokenBatch& batch, const Update& update, std::string restart_data = "");

}  // namespace rp
