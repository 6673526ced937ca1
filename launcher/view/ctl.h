// launcher/view/ctl.h
// Implements `rp-launch ctl`, which changes a run of this user while it runs. docs/launcher.md.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "common/command_line/option_spec.h"

namespace rp {

struct ControlOptions {
  bool help = false;
  std::optional<int> worker;  // to add; not set: the first one that has left
  std::optional<pid_t> run;   // the process of rp-launch; not set: there is only one
};

// The table of all options, from which the parser and --help are derived.
[[nodiscard]] const std::vector<OptionSpec>& control_option_specs();
// `arguments`: everything after "ctl". Throws rp::Error (kUsage).
[[nodiscard]] ControlOptions parse_control_options(const std::vector<std::string>& arguments);

// Asks the run to start the worker, and waits until it has a process. Returns the exit code. Throws rp::Error: kUsage
// if there is no such run or worker, kNoResource if it does not start.
[[nodiscard]] int run_control(const ControlOptions& options);

}  // namespace rp
