// pipeline/process/set_aside_task.h
// Handles a task that has ended several workers: the coordinator writes it to a file, and rp-launch replay has a worker
// compute it again (docs/design/replay.md).
#pragma once

#include <functional>
#include <string>

#include "hoststore/control.h"
#include "hoststore/records/wait_record.h"
#include "hoststore/store.h"
#include "launcher/process/runtime_settings.h"
#include "roundpipe/error.h"

namespace rp {

// Writes the task to the working directory, or to the one for temporary files if that fails. Returns the error
// (kTaskSetAside) that ends the run, with the name of the file or the reason why there is none. REQUIRES: the task's
// weights and inputs are final.
[[nodiscard]] Error set_aside_error(Store& store, const Command& command, const RuntimeSettings& settings);

// Has worker 0 compute a task, and returns what to print about it. `is_failed`: ends the wait. REQUIRES: the worker
// serves the store, which load_task() has filled. Throws what the layer threw, as WorkerError.
[[nodiscard]] std::string compute_task(Store& store, const Command& command, WaitRecord waits,
                                       const std::function<bool()>& is_failed);

}  // namespace rp
