// train/run/training_setup.h
// Converts the settings of a run to the planner's terms, for predictions of its memory and time.
#pragma once

#include "planner/prediction/run_prediction.h"
#include "scheduler/gpu_profile.h"
#include "train/settings/settings.h"

namespace rp {

// Throws rp::Error (kBadInput) as config_of_model() does.
[[nodiscard]] TrainingSetup setup_of(const TrainSettings& settings, const GpuProfile& gpu, int num_workers,
                                     Accumulate accumulate = Accumulate::kFp32);

}  // namespace rp
