#include "launcher/hosts/host_list.h"

#include <fstream>
#include <set>
#include <sstream>

#include "common/bad_input.h"
#include "common/nodes.h"
#include "common/text.h"
#include "hoststore/control.h"
#include "launcher/process/runtime_settings.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

Host parse_host(const std::string& option, const std::string& text) {
  const std::size_t colon = text.find(':');
  Host host{.name = text.substr(0, colon)};
  if (host.name.empty() || host.name.find_first_of(" \t/=") != std::string::npos)
    throw Error(ExitCode::kUsage,
                cat(option, ": '", text, "' is no host; write a name, or a name and a number as a:8"));
  if (colon != std::string::npos) host.num_workers = parse_count(option, text.substr(colon + 1), 1, kMaxWorkers);
  return host;
}

void check_list(const std::string& option, const std::vector<Host>& hosts) {
  if (hosts.empty()) throw Error(ExitCode::kUsage, cat(option, " names no host"));
  if (hosts.size() > static_cast<std::size_t>(kMaxNodes))
    throw Error(ExitCode::kUsage, cat(option, " names ", hosts.size(), " hosts; at most ", kMaxNodes, " are possible"));
  std::set<std::string> names;
  for (const Host& host : hosts) {
    if (names.insert(host.name).second) continue;
    throw Error(ExitCode::kUsage, cat(option, " names ", host.name, " twice; there is one node on each host"));
  }
}

}  // namespace

std::vector<Host> parse_hosts(const std::string& option, const std::string& value) {
  std::vector<Host> hosts;
  std::istringstream in(value);
  for (std::string text; std::getline(in, text, ',');) hosts.push_back(parse_host(option, text));
  check_list(option, hosts);
  return hosts;
}

std::vector<Host> read_hostfile(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw bad_input(path, "cannot be read: --hostfile names a file with a host in each line");
  std::vector<Host> hosts;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    std::string word;
    if (!(words >> word)) continue;
    try {
      hosts.push_back(parse_host("--hostfile", word));
      while (words >> word) {
        if (!word.starts_with("slots=")) throw Error(ExitCode::kUsage, cat("'", word, "' is not known"));
        hosts.back().num_workers = parse_count("slots", word.substr(6), 1, kMaxWorkers);
      }
    } catch (const Error& error) {
      throw bad_input(path, "line ", number, ": ", error.what());
    }
  }
  check_list(path.string(), hosts);
  return hosts;
}

}  // namespace rp
