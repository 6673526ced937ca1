// train/run/training_setup.h
// A run in the planner's terms, for what is reckoned of its memory and time.
#pragma once

#include "planner/prediction/run_prediction.h"
#include "scheduler/gpu_profile.h"
#include "train/settings/settings.h"

namespace rp {

// Throws rp::Error (kBadInput) as config_of_model().
[[nodiscard]] TrainingSetup setup_of(const TrainSettings& settings, const GpuProfile& gpu, int num_workers,
                                     Accumulate accumulate = Accumulate::kFp32);

}  // namespace rp
