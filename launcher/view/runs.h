// launcher/view/runs.h
// Finds the runs of this user on this machine and takes a snapshot of each, for `rp-launch ps` and `rp-launch top`.
//
// A run is an rp-launch process with a fault board, which is found and read through /proc. So the kernel decides who
// may read it, and there is no list of runs that could be wrong. Nothing is written, and no process has to answer.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/process/process_stat.h"
#include "launcher/process/run_dump.h"

namespace rp {

// A process of a run, with what it uses.
struct ProcessView {
  ProcessSnapshot snapshot;
  double cpu_seconds = 0;  // of all its threads, since its start
  ProcessMemory memory = {};
  std::uint32_t num_lost = 0;  // processes that were in its place before
};

struct RunView {
  pid_t launcher = 0;
  std::int64_t start_ticks = 0;           // when rp-launch was started: 1/sysconf(_SC_CLK_TCK) s since the machine was
  double seconds = 0;                     // since then
  std::vector<std::string> command = {};  // of rp-launch, with its options and the program
  std::vector<ProcessView> processes = {};  // the coordinator, then the workers; empty if there is a problem
  std::string problem = {};                 // why the processes are not known; "" if they are
};

// Returns the runs whose rp-launch has the user id `user`, the oldest first. Processes that end meanwhile are left out.
[[nodiscard]] std::vector<RunView> find_runs(uid_t user);

}  // namespace rp
