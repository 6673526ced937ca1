// nodes/network_library.h
// Loads the library that connects the nodes of a run: libroundpipe_mpi.so, for Open MPI. Only
// coordinators of runs on several nodes load it.
#pragma once

#include <memory>

#include "nodes/network.h"

namespace rp {

// The symbol `rp_network_library` that the library exports.
struct NetworkLibrary {
  const char* version = nullptr;  // version of the project
  // Connects this process to the other nodes. All nodes must call it. Throws rp::Error (kNoResource) if that fails.
  std::unique_ptr<NodeNetwork> (*connect)() = nullptr;
};
inline constexpr const char* kNetworkLibrarySymbol = "rp_network_library";

// Loads the library and connects this process. `num_nodes`: as rp-launch has found it. Throws rp::Error
// (kNoResource) if the library does not exist, cannot be loaded, or has another version, and if the
// number of nodes is another one.
[[nodiscard]] std::unique_ptr<NodeNetwork> connect_nodes(int num_nodes);

}  // namespace rp
