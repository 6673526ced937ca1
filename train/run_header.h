// train/run_header.h
// What `train` prints about its run besides the steps.
#pragma once

#include <string>
#include <vector>

#include "roundpipe/pipeline.h"
#include "train/run_inputs.h"
#include "train/settings/settings.h"

namespace rp {

// What a person wants to know before a run begins, in lines of at most 80 columns. Known before Session::start().
[[nodiscard]] std::string header_text(const TrainSettings& settings, const RunInputs& inputs);

// Every setting in effect, for the log.
[[nodiscard]] std::string settings_text(const TrainSettings& settings, int threads_per_worker);

// What --resume auto says of a run that has nothing left to do.
[[nodiscard]] std::string ended_text(const TrainSettings& settings);

// Host memory by purpose, before the first step.
[[nodiscard]] std::string memory_text(const MemoryPlan& plan);

// A line without its end: what the workers did before the first step.
[[nodiscard]] std::string warm_up_text(double seconds);

// Likewise: the budget of activations, once it is known.
[[nodiscard]] std::string activations_text(const MemoryPlan& plan);

// Likewise, at the end of a run.
[[nodiscard]] std::string measured_text(const MemoryPlan& plan);

// The memory of the worker that used most of its GPU's, or without GPUs of the worker that used most; for the end of a
// run.
[[nodiscard]] std::string worker_memory_text(const std::vector<WorkerMemoryUse>& workers);

// The one line that depends on the machine and on the number of workers; results do not.
[[nodiscard]] std::string speed_text(int num_workers, const std::string& plan);

}  // namespace rp
