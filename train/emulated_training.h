// train/emulated_training.h
// Runs `train` on an emulated device: steps without weights and data, to measure their time
// (docs/emulated-device.md).
#pragma once

#include "roundpipe/pipeline.h"
#include "roundpipe/session.h"
#include "train/settings/settings.h"

namespace rp {

// In the coordinator: runs the steps and prints the time of each. In a worker: serves tasks and
// does not return.
void train_emulated(Session& session, const TrainSettings& settings, const PipelineOptions& options);

}  // namespace rp
