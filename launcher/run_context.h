// launcher/run_context.h
// Holds what all members of a run share: the plan, the fault board, the liveness pipe and the sinks
// for their output.
#pragma once

#include <signal.h>
#include <sys/resource.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/system/fd.h"
#include "hoststore/records/fault_board.h"
#include "launcher/launch_plan.h"
#include "launcher/machine/terminal.h"
#include "launcher/machine/watchdog.h"
#include "launcher/output.h"

namespace rp {

// Owned by the supervisor; outlives the members.
struct RunContext {
  // Prepares this process to be the launcher: opens those of the descriptors 0 to 2 that are
  // closed, raises the limit on open files, and blocks the signals `handled`. Throws rp::Error:
  // kOutputFailed for the log directory, kNoResource.
  [[nodiscard]] static RunContext create(LaunchPlan plan, const sigset_t& handled);

  LaunchPlan plan;
  std::string number{};                // of the run, for the watchdog
  std::optional<Watchdog> watchdog{};  // destroyed after liveness_write
  FaultBoard board;
  UniqueFd liveness_read;   // inherited by every member
  UniqueFd liveness_write;  // held only by the launcher, as long as it lives
  UniqueFd no_input;        // /dev/null
  sigset_t signal_mask{};   // of the launcher, before it blocked the signals that it handles
  rlimit open_files{};      // of the launcher, before it raised its limit
  Terminal terminal{};      // if it exists, the coordinator stays in the launcher's process group
  OutputSink out = OutputSink(1);
  OutputSink err = OutputSink(2);
  struct LogFile {
    UniqueFd file;
    OutputSink sink;
  };
  std::map<std::string, LogFile> logs{};  // by path; used if lines pass through rp-launch on their way to log files

  // Prints lines of rp-launch itself.
  void say(const std::string& lines);
  // Returns all sinks: stdout, stderr and the log files.
  [[nodiscard]] std::vector<OutputSink*> sinks();
};

}  // namespace rp
