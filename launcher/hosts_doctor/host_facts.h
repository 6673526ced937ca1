// launcher/hosts_doctor/host_facts.h
// Observes what must be the same on all hosts of a run, and the limits of a host. Each host does so itself, and prints
// it for the rp-launch that asks.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "launcher/machine/limits.h"

namespace rp {

// Names of what is compared.
inline constexpr const char* kBuildFact = "RoundPipe";
inline constexpr const char* kMpiFact = "Open MPI";
inline constexpr const char* kInstructionsFact = "instructions";

struct HostFacts {
  // By name: what must be the same on all hosts.
  std::vector<std::pair<std::string, std::string>> same{};
  std::vector<LimitLine> limits{};
  std::string network_problem{};  // why the library that connects the nodes cannot be used; empty: it can
};

// `own_directory`: that of rp-launch. `library_path`: in the format of LD_LIBRARY_PATH.
[[nodiscard]] HostFacts observe_host_facts(const std::filesystem::path& own_directory, const std::string& library_path);

// One line.
[[nodiscard]] std::string host_facts_json(const HostFacts& facts);
// Reads the line from the output of a host. Throws rp::Error (kLauncherFailed) if there is none.
[[nodiscard]] HostFacts parse_host_facts(const std::string& output);

}  // namespace rp
