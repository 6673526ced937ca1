// coordinator/rounds/task_failure.h
// Describes the failure of a task for the user: layer, microbatch, stage, step, worker, and what
// the layer threw.
#pragma once

#include "hoststore/control.h"
#include "hoststore/store.h"
#include "roundpipe/error.h"

namespace rp {

// Returns the error, from the failure record of the task's worker. REQUIRES: the task's completion
// has the outcome kFailed.
[[nodiscard]] WorkerError task_failure(Store& store, const Command& command, int worker);

}  // namespace rp
