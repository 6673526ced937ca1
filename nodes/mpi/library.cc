// Exports the network over Open MPI, in libroundpipe_mpi.so (nodes/network_library.h).
#include <array>
#include <string>

#include "nodes/mpi/mpi_network.h"
#include "nodes/network_library.h"

namespace {

// Returns what MPI calls itself, up to the first comma: what follows is about the machine that it was built on.
std::string implementation() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string whole(text.data(), static_cast<std::size_t>(length));
  return whole.substr(0, whole.find_first_of(",\n"));
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const rp::NetworkLibrary rp_network_library = {
    .version = RP_VERSION,
    .connect = []() -> std::unique_ptr<rp::NodeNetwork> { return std::make_unique<rp::MpiNetwork>(); },
    .implementation = implementation};
