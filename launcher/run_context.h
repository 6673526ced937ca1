// launcher/run_context.h
// Holds what all members of a run share: the plan, the fault board, the liveness pipe and the sinks
// for their output.
#pragma once

#include <signal.h>
#include <sys/resource.h>

#include "common/system/fd.h"
#include "hoststore/records/fault_board.h"
#include "launcher/launch_plan.h"
#include "launcher/machine/terminal.h"
#include "launcher/output.h"

namespace rp {

// Owned by the supervisor; outlives the members.
struct RunContext {
  // Prepares this process to be the launcher: opens those of the descriptors 0 to 2 that are
  // closed, raises the limit on open files, and blocks the signals `handled`. Throws rp::Error:
  // kOutputFailed for the log directory, kNoResource.
  [[nodiscard]] static RunContext create(LaunchPlan plan, const sigset_t& handled);

  LaunchPlan plan;
  FaultBoard board;
  UniqueFd liveness_read;   // inherited by every member
  UniqueFd liveness_write;  // held only by the launcher, as long as it lives
  UniqueFd no_input;        // /dev/null
  sigset_t signal_mask{};   // of the launcher, before it blocked the signals that it handles
  rlimit open_files{};      // of the launcher, before it raised its limit
  Terminal terminal{};      // if it exists, the coordinator stays in the launcher's process group
  OutputSink out = OutputSink(1);
  OutputSink err = OutputSink(2);
};

}  // namespace rp
