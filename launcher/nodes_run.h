// launcher/nodes_run.h
// Runs a program on several hosts: starts mpirun, which starts an rp-launch on each, passes requests
// to stop on to all of them, and returns the exit code of the run. Starts a run that has lost a process or a host
// again, if it is asked to.
#pragma once

#include "launcher/hosts/mpirun_command.h"

namespace rp {

struct NodesRunOptions {
  NodesCommand command;
  int max_restarts = 0;                 // with the hosts that still answer
  std::int64_t time_limit_seconds = 0;  // then the run is asked to stop; 0: none
};

// Throws rp::Error kNotFound if there is no mpirun.
[[nodiscard]] int run_on_hosts(NodesRunOptions options);

}  // namespace rp
