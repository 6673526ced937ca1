#include "nodes/network_library.h"

#include <dlfcn.h>

#include <string>

#include "common/system/own_library.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

const NetworkLibrary& load_network_library(const std::filesystem::path& folder) {
  const OwnLibrary loaded = load_own_library(kNetworkLibraryFile, folder);
  if (!loaded.exists) {
    throw Error(ExitCode::kNoResource,
                cat("a run on several nodes needs ", loaded.path.string(),
                    ", which does not exist: build it where Open MPI's headers are (libopenmpi-dev): scripts/build.sh "
                    "release programs; or start the run on one node"));
  }
  if (loaded.handle == nullptr) {
    throw Error(ExitCode::kNoResource,
                cat(loaded.path.string(), " cannot be loaded: ", loaded.error, "; install Open MPI 4 on this node"));
  }
  const auto* const library = static_cast<const NetworkLibrary*>(dlsym(loaded.handle, kNetworkLibrarySymbol));
  if (library == nullptr || std::string(library->version) != RP_VERSION) {
    throw Error(ExitCode::kNoResource, cat(loaded.path.string(), " is of another version than this program (",
                                           RP_VERSION, "); install both from one build"));
  }
  return *library;
}

std::unique_ptr<NodeNetwork> connect_nodes(int num_nodes, const std::filesystem::path& folder) {
  std::unique_ptr<NodeNetwork> network = load_network_library(folder).connect();
  if (network->place().num_nodes != num_nodes) {
    throw Error(
        ExitCode::kNoResource,
        cat("the environment names ", num_nodes, " nodes, but Open MPI has connected ", network->place().num_nodes,
            "; start rp-launch once per node, with mpirun or srun --mpi=pmix of the Open MPI for which this "
            "program was built"));
  }
  return network;
}

}  // namespace rp
