// launcher/machine/watchdog.h
// Ends what is left of a run whose rp-launch was killed.
//
// The processes of a run die with rp-launch (child_process.h), but not the processes that those have started. They
// inherit the run's number in the variable RP_RUN, though, whatever session or process group they are in.
#pragma once

#include <string>

namespace rp {

inline constexpr const char* kRunVariable = "RP_RUN";

// Returns a random number for a run, behind the numbers of the runs that this process is itself a part of:
// "0f1e2d3c4b5a6978/8796a5b4c3d2e1f0".
[[nodiscard]] std::string make_run_number();

// Forks a process that waits until all write ends of the pipe are closed, and then kills every process of this user
// whose RP_RUN contains the number, until none is left, for at most 10 s. `write_end`: closed in that process. If it
// cannot be forked, the run goes without. REQUIRES: one thread.
void start_watchdog(const std::string& run, int read_end, int write_end);

}  // namespace rp
