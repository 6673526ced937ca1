// launcher/run_context.h
// What all members of a run share: the plan, the fault board, the liveness pipe, the way out for what they write.
#pragma once

#include <signal.h>
#include <sys/resource.h>

#include "common/system/fd.h"
#include "hoststore/records/fault_board.h"
#include "launcher/launch_plan.h"
#include "launcher/output.h"

namespace rp {

// Owned by the supervisor, outlives the members.
struct RunContext {
  // Prepares this process for being the launcher: takes descriptors 0 to 2 if they are free, raises the limit on open
  // files, blocks `handled`. Throws rp::Error: kOutputFailed for the log directory, kNoResource.
  [[nodiscard]] static RunContext create(LaunchPlan plan, const sigset_t& handled);

  LaunchPlan plan;
  FaultBoard board;
  UniqueFd liveness_read;     // inherited by every member
  UniqueFd liveness_write;    // held for the launcher's life, by nobody else
  UniqueFd no_input;          // /dev/null
  sigset_t signal_mask{};     // the launcher's before it blocked its signals
  rlimit open_files{};        // likewise
  bool has_terminal = false;  // the coordinator then stays in the launcher's process group
  OutputSink out = OutputSink(1);
  OutputSink err = OutputSink(2);
};

}  // namespace rp
