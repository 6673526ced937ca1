// launcher/options.h
// What the person asked of rp-launch: its own options, the variables RP_... behind them, and the program to run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/command_line/option_spec.h"
#include "launcher/machine/gpu_list.h"
#include "launcher/process/runtime_settings.h"

namespace rp {

// The table of all options makes the parser, --help and the documentation's test.
[[nodiscard]] const std::vector<OptionSpec>& launch_option_specs();

struct LaunchOptions {
  enum class Action { kRun, kHelp, kVersion };

  Action action = Action::kRun;
  std::optional<int> workers;       // default: the usable cores, or the GPUs
  std::optional<GpuRequest> gpus;   // where the device is "cuda"
  std::optional<std::string> bind;  // "numa", "none"; default: numa where there are several nodes
  RuntimeSettings settings;
  bool tag_output = false;
  std::optional<std::string> log_dir;
  bool dry_run = false;
  std::vector<std::string> command;  // the program and its arguments, verbatim
};

// `arguments`: all after the program's own name. The options end at the first word that is none, or after "--". Throws
// rp::Error kUsage for what is unknown, wrong or missing.
[[nodiscard]] LaunchOptions parse_launch_options(const std::vector<std::string>& arguments);

[[nodiscard]] std::string launch_help();

}  // namespace rp
