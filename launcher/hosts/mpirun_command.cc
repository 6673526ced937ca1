#include "launcher/hosts/mpirun_command.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

namespace rp {

namespace {

// Returns the settings with which the daemons notice after so many seconds that a host cannot be reached, and not after
// 8 minutes.
std::vector<std::pair<std::string, int>> keepalive(int timeout_seconds) {
  const int num_probes = std::clamp(timeout_seconds - 1, 1, 3);
  const int interval = std::max(1, timeout_seconds / 5);
  return {{"oob_tcp_keepalive_time", std::max(1, timeout_seconds - num_probes * interval)},
          {"oob_tcp_keepalive_intvl", interval},
          {"oob_tcp_keepalive_probes", num_probes}};
}

}  // namespace

std::vector<std::string> mpirun_arguments(const NodesCommand& nodes) {
  // Without --quiet it explains each exit code in ten lines; nodes_run.cc explains its own codes.
  std::vector<std::string> words = {"mpirun", "--quiet", "--bind-to", "none", "--oversubscribe", "--stdin", "none"};
  if (geteuid() == 0) words.emplace_back("--allow-run-as-root");
  for (const auto& [name, value] : keepalive(nodes.timeout_seconds))
    words.insert(words.end(), {"--mca", name, std::to_string(value)});
  for (std::size_t i = 0; i < nodes.hosts.size(); ++i) {
    const Host& host = nodes.hosts[i];
    if (i > 0) words.emplace_back(":");
    words.insert(words.end(), {"--host", host.name, "-n", "1"});
    for (const std::string& name : nodes.variables) words.insert(words.end(), {"-x", name});
    words.push_back(nodes.rp_launch.string());
    words.insert(words.end(), nodes.options.begin(), nodes.options.end());
    if (host.num_workers) {
      words.emplace_back(nodes.uses_gpus ? "--gpus" : "--workers");
      words.push_back(std::to_string(*host.num_workers));
    }
    words.emplace_back("--");
    words.insert(words.end(), nodes.command.begin(), nodes.command.end());
  }
  return words;
}

// Found with Open MPI 4.1 (docs/design/several-nodes.md).
const MpirunFailure* mpirun_failure(int code) {
  static constexpr std::array kFailures = {
      MpirunFailure{132, ExitCode::kNotFound,
                    "has no rp-launch under the path that it has here; install the same build on all hosts"},
      MpirunFailure{135, ExitCode::kNotFound,
                    "does not have the current directory; start the run in one that all hosts share"},
      MpirunFailure{205, ExitCode::kNodeLost, "is lost, and all nodes have ended"},
      MpirunFailure{255, ExitCode::kNoResource,
                    "cannot be reached, or has no Open MPI (orted) in its PATH; try: ssh HOST orted --version"}};
  const auto* const found = std::ranges::find(kFailures, code, &MpirunFailure::code);
  return found == kFailures.end() ? nullptr : found;
}

bool concerns_whole_run(const std::string& variable) {
  constexpr std::array kNames = {"RP_HOSTS", "RP_HOSTFILE", "RP_TIME_LIMIT", "RP_ON_NODE_FAILURE", kNodeHostsVariable};
  return std::ranges::find(kNames, variable) != kNames.end();
}

std::vector<std::string> passed_variables() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    const bool is_ours = name.starts_with("RP_") && !concerns_whole_run(name);
    if (is_ours || name.starts_with("NCCL_") || name == "LD_LIBRARY_PATH") names.push_back(name);
  }
  return names;
}

}  // namespace rp
