// launcher/view/ps.h
// Implements `rp-launch ps` and `rp-launch top`: what the runs of this user do, on this machine or on several hosts.
// docs/ps.md.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/command_line/option_spec.h"
#include "launcher/hosts/host_list.h"

namespace rp {

struct ViewOptions {
  bool repeats = false;         // top
  double interval_seconds = 2;  // between two views of top
  int count = 0;                // of views, after which top ends; 0: without an end
  bool shows_waits = false;     // of each thread
  bool json = false;
  bool help = false;
  std::vector<Host> hosts = {};    // to look at; empty: this machine
  bool shows_all_nodes = false;    // the hosts are those of the runs on this machine
  bool is_for_other_host = false;  // prints each view as a line of JSON for the rp-launch that shows it
};

// The word that starts a process for another host: `rp-launch top host-view`.
inline constexpr const char* kHostViewWord = "host-view";

// The table of all options, from which the parser and --help are derived. `repeats`: those of top.
[[nodiscard]] const std::vector<OptionSpec>& view_option_specs(bool repeats);
// `arguments`: everything after "ps" or "top". Throws rp::Error (kUsage).
[[nodiscard]] ViewOptions parse_view_options(bool repeats, const std::vector<std::string>& arguments);

// Prints the runs once, or again and again, and returns the exit code: 0, or that of output that cannot be written.
// With hosts, also those of run_hosts_view(). `own_directory`: that of rp-launch.
[[nodiscard]] int run_view(const ViewOptions& options, const std::filesystem::path& own_directory);

}  // namespace rp
