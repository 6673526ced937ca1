// launcher/launch_plan.h
// What rp-launch is going to start: each process with its command, environment and cores. --dry-run prints it.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "launcher/options.h"
#include "launcher/topology.h"

namespace rp {

using Variables = std::vector<std::pair<std::string, std::string>>;

struct PlannedProcess {
  std::string name;     // "coordinator", "worker 0"
  int board_index = 0;  // of its entry in the fault board: 0 for the coordinator, 1 + w for worker w
  Variables variables;  // added to the launcher's own environment; descriptors are added at the start
  CpuList cpus;         // empty: not bound
  [[nodiscard]] bool is_worker() const { return board_index > 0; }
};

struct LaunchPlan {
  std::filesystem::path program;
  std::vector<std::string> command;
  std::vector<PlannedProcess> processes;  // the coordinator, then the workers
  bool tag_output = false;
  std::filesystem::path log_dir;          // empty: none
};

// What the machine offers.
struct LocalMachine {
  int usable_cores = 1;
  std::vector<CpuList> nodes;
};
[[nodiscard]] LocalMachine observe_machine();

// `own_directory`: where rp-launch lies. Throws rp::Error kNotFound or kCannotExecute.
[[nodiscard]] LaunchPlan make_launch_plan(const LaunchOptions& options, const LocalMachine& machine,
                                          const std::filesystem::path& own_directory);

// One line a process, with a heading.
[[nodiscard]] std::string launch_plan_table(const LaunchPlan& plan);

}  // namespace rp
