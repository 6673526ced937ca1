// launcher/ending.h
// Derives the exit code of rp-launch from how the processes of its run ended. Table:
// docs/exit-codes.md.
#pragma once

#include <optional>
#include <set>

namespace rp {

// Records how a run ended. Statuses are in the format of waitpid().
struct RunEnd {
  int coordinator_status = 0;
  std::optional<int> failed_worker_status = std::nullopt;  // of the first worker that ended unexpectedly, if any
  bool hung = false;                                       // rp-launch ended the run because a process hung
  bool cut_short = false;                                  // rp-launch killed the run after repeated INT
  bool set_aside = false;                                  // a task ended several workers and was not computed again
  bool preempted = false;                                  // the program reported that its state is saved
  std::set<int> stop_signals = {};                         // the stop signals that rp-launch received
};

// Returns 128 + n for a process that was killed by signal n, otherwise its exit code.
[[nodiscard]] int exit_code_of_status(int status);

[[nodiscard]] int exit_code_of_run(const RunEnd& end);

}  // namespace rp
