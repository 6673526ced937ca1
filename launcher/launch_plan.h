// launcher/launch_plan.h
// Lists the processes that rp-launch is going to start, each with its command, environment and
// cores. --dry-run prints this list.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "launcher/machine/topology.h"
#include "launcher/options/options.h"

namespace rp {

using Variables = std::vector<std::pair<std::string, std::string>>;

struct PlannedProcess {
  std::string name;                 // "coordinator", "worker 0"
  int board_index = 0;              // its entry on the fault board: 0 for the coordinator, 1 + w for worker w
  Variables variables;              // added to the launcher's own environment; descriptors are added at the start
  CpuList cpus;                     // empty: not bound
  std::string gpu;                  // for the table: "0 NVIDIA GeForce RTX 4090"; empty if it has none
  std::vector<std::string> tool{};  // runs the program, with its path in front: --debug-worker; empty if there is none
  [[nodiscard]] bool is_worker() const { return board_index > 0; }
};

struct LaunchPlan {
  std::filesystem::path program;
  std::vector<std::string> command;
  std::vector<PlannedProcess> processes;  // the coordinator, then the workers
  int num_nodes = 1;                      // of the MPI job that rp-launch is a part of; the coordinator joins it
  bool tag_output = false;
  bool timestamp_output = false;
  std::filesystem::path log_dir;  // empty: no log files
  WorkerFailurePolicy on_worker_failure = WorkerFailurePolicy::kReplay;
  bool restarts_coordinator = false;
  int max_restarts = 0;
  std::int64_t time_limit_seconds = 0;  // then the run is asked to stop, as by USR1; 0: none
  bool attaches_on_fault = false;       // a process that crashes waits for a debugger
  std::vector<std::string> notes;       // for the user: about the choice of GPUs, and an option without effect
};

// The resources of this machine, and the variables of its environment that affect the plan.
struct LocalMachine {
  int usable_cores = 1;
  std::vector<NumaNode> nodes;
  GpuSystem gpus{};
  CudaVariables cuda{};
  bool sets_max_connections = false;  // the user has set CUDA_DEVICE_MAX_CONNECTIONS
  int num_nodes = 1;                  // from num_nodes_of_job()
};
// Does not load the GPU driver's library if `with_gpus` is false.
[[nodiscard]] LocalMachine observe_machine(bool with_gpus);

// `own_directory`: the directory of rp-launch; `library_path`: the value of LD_LIBRARY_PATH. Throws
// rp::Error kNotFound or kCannotExecute for the program, and kNoResource or kUsage for GPUs, also
// if the plug-in for them is not found.
[[nodiscard]] LaunchPlan make_launch_plan(const LaunchOptions& options, const LocalMachine& machine,
                                          const std::filesystem::path& own_directory,
                                          const std::string& library_path = "");

// The end of the heading.
inline constexpr const char* kPlanTableHeading = "environment and command";

// Formats one line for each process, below a heading. There is a column for GPUs if any process has
// one.
[[nodiscard]] std::string launch_plan_table(const LaunchPlan& plan);

}  // namespace rp
