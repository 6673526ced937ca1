// coordinator/rounds/task_failure.h
// What a task that failed is told of, to the user: layer, microbatch, stage, step, worker, and what the layer threw.
#pragma once

#include "coordinator/rounds/round.h"
#include "hoststore/store.h"
#include "roundpipe/error.h"

namespace rp {

// From the failure record of the slot's worker. REQUIRES: its completion said kFailed.
[[nodiscard]] WorkerError task_failure(Store& store, const Round& round, const Slot& slot);

}  // namespace rp
