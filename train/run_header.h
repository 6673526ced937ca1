// train/run_header.h
// Formats the texts that `train` prints about a run, except its steps.
#pragma once

#include <string>
#include <vector>

#include "roundpipe/pipeline.h"
#include "train/run_inputs.h"
#include "train/settings/settings.h"

namespace rp {

// Returns a summary for the user before the run begins, in lines of at most 80 columns. It needs
// nothing that is known only after Session::start().
[[nodiscard]] std::string header_text(const TrainSettings& settings, const RunInputs& inputs);

// Returns every setting in effect, for the log.
[[nodiscard]] std::string settings_text(const TrainSettings& settings, int threads_per_worker);

// Returns the message of --resume auto for a run that has nothing left to do.
[[nodiscard]] std::string ended_text(const TrainSettings& settings);

// Returns host memory by purpose, to be printed before the first step.
[[nodiscard]] std::string memory_text(const MemoryPlan& plan);

// Returns a line, without a newline, about the workers' warm-up before the first step.
[[nodiscard]] std::string warm_up_text(double seconds);

// Returns a line, without a newline, with the budget of activations. REQUIRES: the budget is known.
[[nodiscard]] std::string activations_text(const MemoryPlan& plan);

// Returns a line, without a newline, that compares planned and measured host memory at the end of a
// run.
[[nodiscard]] std::string measured_text(const MemoryPlan& plan);

// Returns a line, without a newline, about the memory of one worker, for the end of a run: the
// worker that used the largest share of its GPU's memory or, without GPUs, the largest amount.
[[nodiscard]] std::string worker_memory_text(const std::vector<WorkerMemoryUse>& workers);

// Returns the one line that depends on the machine and on the number of workers. Results do not
// depend on them.
[[nodiscard]] std::string speed_text(int num_workers, const std::string& plan);

}  // namespace rp
