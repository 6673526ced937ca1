// launcher/launch_plan.h
// What rp-launch is going to start: each process with its command, environment and cores. --dry-run prints it.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "launcher/machine/topology.h"
#include "launcher/options.h"

namespace rp {

using Variables = std::vector<std::pair<std::string, std::string>>;

struct PlannedProcess {
  std::string name;     // "coordinator", "worker 0"
  int board_index = 0;  // of its entry in the fault board: 0 for the coordinator, 1 + w for worker w
  Variables variables;  // added to the launcher's own environment; descriptors are added at the start
  CpuList cpus;         // empty: not bound
  std::string gpu;      // for the table: "0 NVIDIA GeForce RTX 4090"; empty: none
  [[nodiscard]] bool is_worker() const { return board_index > 0; }
};

struct LaunchPlan {
  std::filesystem::path program;
  std::vector<std::string> command;
  std::vector<PlannedProcess> processes;  // the coordinator, then the workers
  bool tag_output = false;
  std::filesystem::path log_dir;  // empty: none
  std::string note;               // what the person should know about the choice of GPUs; empty: nothing
};

// What the machine offers.
struct LocalMachine {
  int usable_cores = 1;
  std::vector<NumaNode> nodes;
  GpuSystem gpus{};
  CudaVariables cuda{};
  bool sets_max_connections = false;  // the person has set CUDA_DEVICE_MAX_CONNECTIONS
};
// Without `with_gpus` the driver is not asked.
[[nodiscard]] LocalMachine observe_machine(bool with_gpus);

// `own_directory`: where rp-launch lies. Throws rp::Error kNotFound or kCannotExecute for the program; for GPUs
// kNoResource or kUsage, also where there is no plug-in for them (`library_path`: as LD_LIBRARY_PATH).
[[nodiscard]] LaunchPlan make_launch_plan(const LaunchOptions& options, const LocalMachine& machine,
                                          const std::filesystem::path& own_directory,
                                          const std::string& library_path = "");

// One line a process, with a heading; a column for the GPUs where there are some.
[[nodiscard]] std::string launch_plan_table(const LaunchPlan& plan);

}  // namespace rp
