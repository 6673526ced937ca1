#include "train/run/training_setup.h"

#include "model_files/profile_file.h"

namespace rp {

TrainingSetup setup_of(const TrainSettings& settings, const GpuProfile& gpu, int num_workers, Accumulate accumulate) {
  return {.model = config_of_model(settings.model.string()),
          .gpu = gpu,
          .server = server_profile(server_profile_names().front()).profile,
          .num_gpus = num_workers,
          .sequence_length = settings.sequence_length,
          .batch = static_cast<int>(settings.batch_size),
          .parts = settings.parts,
          .asynchronous = settings.asynchronous,
          .accumulate = accumulate,
          .round_microbatches = static_cast<int>(settings.num_microbatches),
          .rounds_per_step = static_cast<int>(settings.rounds_per_step),
          .recompute = settings.recompute_grain.value_or(RecomputeGrain::kStage)};  // the default on a GPU
}

}  // namespace rp
