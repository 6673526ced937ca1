#include "launcher/hosts/mpirun_command.h"

#include <unistd.h>

namespace rp {

std::vector<std::string> mpirun_arguments(const NodesCommand& nodes) {
  // Without --quiet it explains each exit code in ten lines; nodes_run.cc explains its own codes.
  std::vector<std::string> words = {"mpirun", "--quiet", "--bind-to", "none", "--oversubscribe", "--stdin", "none"};
  if (geteuid() == 0) words.emplace_back("--allow-run-as-root");
  // A host that cannot be reached is noticed after 5 s instead of minutes.
  for (const char* setting : {"oob_tcp_keepalive_time 2", "oob_tcp_keepalive_intvl 1", "oob_tcp_keepalive_probes 2"}) {
    const std::string text = setting;
    const std::size_t space = text.find(' ');
    words.insert(words.end(), {"--mca", text.substr(0, space), text.substr(space + 1)});
  }
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

bool names_hosts(const std::string& variable) { return variable == "RP_HOSTS" || variable == "RP_HOSTFILE"; }

std::vector<std::string> passed_variables() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    if ((name.starts_with("RP_") && !names_hosts(name)) || name == "LD_LIBRARY_PATH") names.push_back(name);
  }
  return names;
}

}  // namespace rp
