// train/run_model.h
// Describes the model of a run, its loss and its pipeline, by the run's settings alone, because every
// process describes them.
#pragma once

#include "roundpipe/models.h"
#include "roundpipe/pipeline.h"
#include "train/settings/settings.h"

namespace rp {

[[nodiscard]] PipelineOptions pipeline_options(const TrainSettings& settings);

[[nodiscard]] models::CausalLmLossSettings loss_settings(const TrainSettings& settings);

// Returns the model with an example of its microbatches. `loss`: loss_settings(). Throws what
// models::load() throws.
[[nodiscard]] Model load_model(const TrainSettings& settings, const models::CausalLmLossSettings& loss);

}  // namespace rp
