// train/settings/defaults.h
// Fills in settings that were not given, from the model and the data. The defaults never depend on
// the machine or the number of workers, so the same command has the same results everywhere.
#pragma once

#include <cstdint>

#include "train/settings/settings.h"

namespace rp {

// Fills in sequence length, batch size, microbatches and learning rate. Every process of a run can
// compute these. `max_positions`: the model's maximum sequence length; 0: not known.
void fill_in_by_model(TrainSettings& settings, std::int64_t num_parameters, std::int64_t max_positions);

// Returns whether fill_in_by_model() would change anything.
[[nodiscard]] bool needs_model(const TrainSettings& settings);

// Fills in the number of steps, warm-up, decay, and the intervals of evaluations and log lines.
// `num_sequences`: sequences in an epoch.
void fill_in_by_data(TrainSettings& settings, std::uint64_t num_sequences);

}  // namespace rp
