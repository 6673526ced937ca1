// train/trained_model.h
// What a run leaves behind: OUTPUT/final, and OUTPUT/merged of a run with LoRA that was asked for it.
#pragma once

#include <string>

#include "roundpipe/pipeline.h"
#include "train/settings/settings.h"

namespace rp {

// Writes them from the pipeline's weights. Returns where they are: "the model is in run/final". Throws rp::Error
// (kOutputFailed).
[[nodiscard]] std::string write_trained_model(Pipeline& pipeline, const TrainSettings& settings);

}  // namespace rp
