// launcher/view/ps.h
// Implements `rp-launch ps` and `rp-launch top`: what the runs of this user do. docs/ps.md.
#pragma once

#include <string>
#include <vector>

#include "common/command_line/option_spec.h"

namespace rp {

struct ViewOptions {
  bool repeats = false;         // top
  double interval_seconds = 2;  // between two views of top
  int count = 0;                // of views, after which top ends; 0: without an end
  bool shows_waits = false;     // of each thread
  bool json = false;
  bool help = false;
};

// The table of all options, from which the parser and --help are derived. `repeats`: those of top.
[[nodiscard]] const std::vector<OptionSpec>& view_option_specs(bool repeats);
// `arguments`: everything after "ps" or "top". Throws rp::Error (kUsage).
[[nodiscard]] ViewOptions parse_view_options(bool repeats, const std::vector<std::string>& arguments);

// Prints the runs once, or again and again, and returns the exit code: 0, or that of output that cannot be written.
[[nodiscard]] int run_view(const ViewOptions& options);

}  // namespace rp
