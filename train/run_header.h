// train/run_header.h
// What `train` prints before its first step.
#pragma once

#include <string>

#include "roundpipe/pipeline.h"
#include "train/run_inputs.h"
#include "train/settings.h"

namespace rp {

// Every setting in effect, the model and the data. Known before Session::start().
[[nodiscard]] std::string settings_text(const TrainSettings& settings, const RunInputs& inputs, int threads_per_worker);

// Host memory by purpose.
[[nodiscard]] std::string memory_text(const MemoryPlan& plan);

// The one line that depends on the machine and on the number of workers; results do not.
[[nodiscard]] std::string speed_text(int num_workers, const std::string& plan);

}  // namespace rp
