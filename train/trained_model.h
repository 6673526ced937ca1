// train/trained_model.h
// Writes the result of a run: OUTPUT/final, and OUTPUT/merged for a run with LoRA and
// --save-merged.
#pragma once

#include <string>

#include "roundpipe/pipeline.h"
#include "train/settings/settings.h"

namespace rp {

// Writes the model or adapter from the pipeline's weights. Returns a text that names its directory:
// "the model is in run/final". Throws rp::Error (kOutputFailed).
[[nodiscard]] std::string write_trained_model(Pipeline& pipeline, const TrainSettings& settings);

}  // namespace rp
