// launcher/report.h
// Formats the report of a failed run: which process failed, what happened, where, and what to do.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "hoststore/records/fault_board.h"

namespace rp {

// Describes why a run failed: the first process that failed, how it ended, and its Fault, if it recorded one.
// (FailureRecord: why a task failed; rp-launch does not read it.)
struct Failure {
  std::string process;  // "worker 3"
  pid_t pid = 0;
  int status = 0;                             // in the format of waitpid()
  std::optional<Fault> fault = std::nullopt;  // what the process recorded itself
  ProcessState state = ProcessState::kNotStarted;
  BoardTask task = {};
  std::string layer_inputs = {};   // types and shapes of what the layer read, or ""
  std::string crash_notice = {};   // what the process recorded for the case that it crashes, or ""
  std::string hang = {};           // why rp-launch has ended the process: "hangs: ..."; "" if it has not
  bool under_tool = false;         // it ran under a tool (--debug-worker), whose status this is
  bool seen_late = false;          // rp-launch was stopped when it happened
  std::string out_of_memory = {};  // set if the kernel's out-of-memory killer ended it: what the limit was
  std::string log_file = {};       // contains its stderr; "" if there is none
  std::string said = {};           // its output that rp-launch has printed, which the report does not repeat
};

inline constexpr int kMaxReportLines = 15;

// Returns at most kMaxReportLines lines, each with a newline at its end.
[[nodiscard]] std::string failure_text(const Failure& failure);

// Returns, for example, "SIGSEGV (segmentation fault)".
[[nodiscard]] std::string signal_text(int signal_number);

}  // namespace rp
