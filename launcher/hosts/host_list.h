// launcher/hosts/host_list.h
// Parses the lists of hosts of `rp-launch --hosts` and `--hostfile`.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace rp {

struct Host {
  std::string name;
  std::optional<int> num_workers{};  // or GPUs; nullopt: as on one node
  bool operator==(const Host&) const = default;
};

// Parses "a:8,b:8" or "a,b". `option`: for messages. Throws rp::Error (kUsage).
[[nodiscard]] std::vector<Host> parse_hosts(const std::string& option, const std::string& value);

// Reads a file with a host in each line: "a", "a:8" or, as for Open MPI, "a slots=8". Empty lines and
// what follows a # are ignored. Throws rp::Error (kBadInput), naming the line.
[[nodiscard]] std::vector<Host> read_hostfile(const std::filesystem::path& path);

}  // namespace rp
