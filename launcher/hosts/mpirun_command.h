// launcher/hosts/mpirun_command.h
// Builds the command with which `rp-launch --hosts` starts an rp-launch on each host.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "launcher/hosts/host_list.h"
#include "roundpipe/error.h"

namespace rp {

struct NodesCommand {
  std::vector<Host> hosts;
  std::filesystem::path rp_launch;     // the same path on all hosts
  std::vector<std::string> options;    // of rp-launch on each host
  std::vector<std::string> command;    // the program and its arguments
  bool uses_gpus = false;              // the numbers of workers are numbers of GPUs
  std::vector<std::string> variables;  // names of variables that all hosts get
  int timeout_seconds = 10;            // after which a host that does not answer is lost
};

// Returns the arguments of mpirun, whose name comes first.
[[nodiscard]] std::vector<std::string> mpirun_arguments(const NodesCommand& nodes);

// A failure of Open MPI itself, with its exit code and the one that rp-launch ends with.
struct MpirunFailure {
  int code = 0;
  ExitCode means{};
  const char* text = "";  // follows the name of the host
};
// Returns the failure that this exit code of mpirun reports; nullptr if it is the program's own.
[[nodiscard]] const MpirunFailure* mpirun_failure(int code);

// Returns true for the variables that only concern the run as a whole, such as RP_HOSTS. The nodes must not see them,
// or each would start all hosts again.
[[nodiscard]] bool concerns_whole_run(const std::string& variable);

// The variable with the hosts of a run, which each of its rp-launch processes has, so that `rp-launch top` finds all of
// them from any of them.
inline constexpr const char* kNodeHostsVariable = "RP_NODE_HOSTS";

// Returns the names of this process's variables that the runs on all hosts need: those of RoundPipe,
// and the path of libraries.
[[nodiscard]] std::vector<std::string> passed_variables();

}  // namespace rp
