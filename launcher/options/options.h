// launcher/options/options.h
// Parses the command line of rp-launch: its own options, the RP_... variables that set their
// defaults, and the program to run.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/command_line/option_spec.h"
#include "launcher/hosts/host_list.h"
#include "launcher/machine/gpu_list.h"
#include "launcher/options/debug_tool.h"
#include "launcher/options/worker_failure_policy.h"
#include "launcher/process/runtime_settings.h"

namespace rp {

// The table of all options. The parser, --help and the test of the documentation are derived from
// it.
[[nodiscard]] const std::vector<OptionSpec>& launch_option_specs();

struct LaunchOptions {
  enum class Action { kRun, kHelp, kVersion };

  Action action = Action::kRun;
  std::optional<int> workers;       // default: the number of usable cores, or of GPUs
  std::optional<GpuRequest> gpus;   // set if the device is "cuda"
  std::optional<std::string> bind;  // "numa", "none"; default: numa if there are several nodes
  RuntimeSettings settings;
  bool tag_output = false;
  bool timestamp_output = false;
  std::optional<std::string> log_dir;
  bool dry_run = false;
  WorkerFailurePolicy on_worker_failure = WorkerFailurePolicy::kReplay;
  bool restarts_coordinator = true;
  int max_restarts = 3;
  bool restarts_nodes = false;          // of a run on several hosts
  std::int64_t time_limit_seconds = 0;  // then the run is asked to stop, as by USR1; 0: none
  std::optional<DebugTool> debug_tool;
  std::vector<std::string> command;            // the program and its arguments, verbatim
  std::vector<Host> hosts{};                   // of a run on several; empty: this machine
  std::vector<std::string> options_of_node{};  // the options that were given, without those that name hosts
  std::filesystem::path task_file{};           // compute only the task of this file: rp-launch replay
};

// `arguments`: everything after the name rp-launch. The options end at the first word that is not
// an option, or after "--". Throws rp::Error kUsage for anything unknown, wrong or missing.
[[nodiscard]] LaunchOptions parse_launch_options(const std::vector<std::string>& arguments);

[[nodiscard]] std::string launch_help();

}  // namespace rp
