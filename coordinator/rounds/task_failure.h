// coordinator/rounds/task_failure.h
// Describes the failure of a task for the user: layer, microbatch, stage, step, worker, and what
// the layer threw.
#pragma once

#include "coordinator/rounds/round.h"
#include "hoststore/store.h"
#include "roundpipe/error.h"

namespace rp {

// Returns the error, from the failure record of the slot's worker. REQUIRES: the slot's completion
// has the outcome kFailed.
[[nodiscard]] WorkerError task_failure(Store& store, const Round& round, const Slot& slot);

}  // namespace rp
