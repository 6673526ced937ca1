// launcher/report.h
// What a person reads when a run fails: which process, what, where, what to do.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "hoststore/records/fault_board.h"

namespace rp {

// The first failure of a run.
struct Failure {
  std::string process;  // "worker 3"
  pid_t pid = 0;
  int status = 0;                             // as waitpid() gives it
  std::optional<Fault> fault = std::nullopt;  // what it recorded itself
  ProcessState state = ProcessState::kNotStarted;
  BoardTask task = {};
  std::string crash_notice = {};  // what it left for this case, or ""
  bool seen_late = false;         // rp-launch was stopped when it happened
  bool out_of_memory = false;     // the kernel's out-of-memory killer struck meanwhile
  std::string log_file = {};      // where its output is, or ""
  std::string said = {};          // what rp-launch printed of its output: not repeated
};

inline constexpr int kMaxReportLines = 14;

// At most kMaxReportLines lines, each ending in a newline.
[[nodiscard]] std::string failure_text(const Failure& failure);

// "SIGSEGV (segmentation fault)".
[[nodiscard]] std::string signal_text(int signal_number);

}  // namespace rp
