#include "launcher/hosts_doctor/host_facts.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "common/system/kernel_file.h"
#include "common/system/processor.h"
#include "common/text.h"
#include "hoststore/data_checksum.h"
#include "launcher/machine/program_path.h"
#include "nodes/network_library.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

namespace fs = std::filesystem;

// Returns the version with a checksum of the contents of programs and libraries, because two builds may have the same
// version.
std::string build_text(const fs::path& own_directory, const std::string& library_path) {
  DataChecksum checksum;
  for (const char* program : {"rp-launch", "train"}) checksum.add_file(own_directory / program);
  for (const char* library : {"libroundpipe.so", kNetworkLibraryFile, kCudaPlugin})
    checksum.add_file(find_library(library, own_directory, library_path));
  std::ostringstream text;
  text << RP_VERSION << ", build " << std::hex << checksum.value();
  return text.str();
}

}  // namespace

HostFacts observe_host_facts(const fs::path& own_directory, const std::string& library_path) {
  HostFacts facts;
  const fs::path library = find_library(kNetworkLibraryFile, own_directory, library_path);
  std::string mpi = "none";
  try {
    mpi = load_network_library(library.parent_path()).implementation();
  } catch (const Error& error) {
    facts.network_problem = error.what();
  }
  facts.same = {{kBuildFact, build_text(own_directory, library_path)},
                {kMpiFact, mpi},
                {kInstructionsFact, instructions_of(kernel_file_text("/proc/cpuinfo"))}};
  facts.limits = limit_lines(observe_limits());
  return facts;
}

std::string host_facts_json(const HostFacts& facts) {
  nlohmann::ordered_json json;
  json["same"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : facts.same) json["same"][name] = value;
  json["network_problem"] = facts.network_problem;
  json["limits"] = nlohmann::ordered_json::array();
  for (const LimitLine& line : facts.limits) {
    json["limits"].push_back({{"key", line.key},
                              {"name", line.name},
                              {"value", line.value},
                              {"advice", line.advice},
                              {"problem", line.is_problem}});
  }
  return json.dump() + "\n";
}

HostFacts parse_host_facts(const std::string& output) try {
  // Programs that the host runs before, such as its shell's profile, may have printed something as well.
  const auto json = nlohmann::ordered_json::parse(output.substr(std::min(output.size(), output.find("{\"same\""))));
  HostFacts facts{.network_problem = json.at("network_problem")};
  for (const auto& [name, value] : json.at("same").items()) facts.same.emplace_back(name, value);
  for (const auto& line : json.at("limits")) {
    facts.limits.push_back({.key = line.at("key"),
                            .name = line.at("name"),
                            .value = line.at("value"),
                            .advice = line.at("advice"),
                            .is_problem = line.at("problem")});
  }
  return facts;
} catch (const nlohmann::json::exception& error) {
  throw Error(ExitCode::kLauncherFailed, cat("its rp-launch answers what this one does not understand (", error.what(),
                                             "); install the same build on all hosts"));
}

}  // namespace rp
