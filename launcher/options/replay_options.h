// launcher/options/replay_options.h
// Turns `rp-launch replay FILE` into the launch of a run that computes one task: that of the file, in one worker.
#pragma once

#include <string>
#include <vector>

#include "launcher/options/options.h"

namespace rp {

// `arguments`: everything after the word replay, options of rp-launch before or after the file. The program, its
// arguments, its directory and the settings of the runtime are those in the file; options and the variables RP_...
// have precedence over these settings. Changes the working directory. Throws rp::Error: kUsage; kBadInput for the file,
// also if it belongs to another user.
[[nodiscard]] LaunchOptions parse_replay_options(const std::vector<std::string>& arguments);

[[nodiscard]] std::string replay_help();

}  // namespace rp
