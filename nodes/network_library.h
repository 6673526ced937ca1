// nodes/network_library.h
// Loads the library that connects the nodes of a run: libroundpipe_mpi.so, for Open MPI. Only
// coordinators of runs on several nodes and `rp-launch doctor` load it.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "nodes/network.h"

namespace rp {

// The symbol `rp_network_library` that the library exports.
struct NetworkLibrary {
  const char* version = nullptr;  // version of the project
  // Connects this process to the other nodes. All nodes must call it. Throws rp::Error (kNoResource) if that fails.
  std::unique_ptr<NodeNetwork> (*connect)() = nullptr;
  // Returns the name and version of what connects the nodes, for example "Open MPI v4.1.4". May be called at any time.
  std::string (*implementation)() = nullptr;
};
inline constexpr const char* kNetworkLibrarySymbol = "rp_network_library";
inline constexpr const char* kNetworkLibraryFile = "libroundpipe_mpi.so";

// Loads the library. `folder`: where it is; default: next to this code. Throws rp::Error (kNoResource) if the library
// does not exist, cannot be loaded, or has another version.
[[nodiscard]] const NetworkLibrary& load_network_library(const std::filesystem::path& folder = {});

// Loads the library and connects this process. `num_nodes`: as rp-launch has found it. Throws rp::Error (kNoResource)
// as load_network_library() does, and if the number of nodes is another one.
[[nodiscard]] std::unique_ptr<NodeNetwork> connect_nodes(int num_nodes, const std::filesystem::path& folder = {});

}  // namespace rp
