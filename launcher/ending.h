// launcher/ending.h
// The exit code of rp-launch, from how its processes ended. Table: docs/exit-codes.md.
#pragma once

#include <optional>
#include <set>

namespace rp {

// How a run ended. Statuses are as waitpid() gives them.
struct RunEnd {
  int coordinator_status = 0;
  std::optional<int> failed_worker_status = std::nullopt;  // of the first worker that ended without being told to
  bool cut_short = false;                                  // rp-launch killed the run because of repeated INT
  bool preempted = false;                                  // the program said that its state is saved
  std::set<int> stop_signals = {};                         // that rp-launch received
};

// 128 + n for an end by signal n, else the exit code.
[[nodiscard]] int exit_code_of_status(int status);

[[nodiscard]] int exit_code_of_run(const RunEnd& end);

}  // namespace rp
