// train/settings/defaults.h
// Fills in the settings that were not given, by the model and the data. Never by the machine or the number of workers:
// the same command has the same results everywhere.
#pragma once

#include <cstdint>

#include "train/settings/settings.h"

namespace rp {

// Sequence length, batch size, microbatches and learning rate. Known in every process of a run. `max_positions`: of the
// model; 0: not known.
void fill_in_by_model(TrainSettings& settings, std::int64_t num_parameters, std::int64_t max_positions);

// Whether fill_in_by_model() would change anything.
[[nodiscard]] bool needs_model(const TrainSettings& settings);

// Steps, warm-up, decay, and how often it is evaluated and logged. `num_sequences`: of an epoch.
void fill_in_by_data(TrainSettings& settings, std::uint64_t num_sequences);

}  // namespace rp
