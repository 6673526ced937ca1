// launcher/progress_watch.h
// Observes what the processes of a run do: prints it, and detects after an INT that the run makes no progress.
// Design: docs/design/dumps.md.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/system/clock.h"
#include "launcher/member.h"
#include "launcher/process/run_dump.h"
#include "launcher/run_context.h"

namespace rp {

// Owned by the supervisor.
class ProgressWatch {
 public:
  // The arguments must outlive this. `members`: the coordinator comes first.
  ProgressWatch(RunContext& run, const std::vector<std::unique_ptr<Member>>& members) : run_(run), members_(members) {}

  // Prints what every process does, once for each run. With `anew`, prints it again if something
  // was computed since the last time.
  void dump(const char* why, bool anew = false);

  // Called after the first INT: starts to check periodically whether the run still makes progress.
  void start();
  // Checks now. Prints a dump and ends the checks if nothing goes on.
  void check();
  void stop() { next_check_ = Deadline::never(); }
  [[nodiscard]] const Deadline& next_check() const { return next_check_; }
  void delay_by_ns(std::int64_t ns) { next_check_ = next_check_.later_by_ns(ns); }

  // Returns what the processes do now.
  [[nodiscard]] std::vector<ProcessSnapshot> snapshots() const;
  // Returns the names of the live processes that have used more processor time since the last call
  // than a process needs to end.
  [[nodiscard]] std::string still_running();

 private:
  RunContext& run_;
  const std::vector<std::unique_ptr<Member>>& members_;
  std::map<pid_t, std::uint64_t> ticks_;     // processor time of each process at the last call of still_running()
  std::vector<ProcessSnapshot> dumped_;      // the processes as last printed
  std::vector<ProcessSnapshot> last_check_;  // the processes at the last check
  Deadline next_check_ = Deadline::never();
};

}  // namespace rp
