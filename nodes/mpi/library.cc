// Exports the network over Open MPI, in libroundpipe_mpi.so (nodes/network_library.h).
#include "nodes/mpi/mpi_network.h"
#include "nodes/network_library.h"

extern "C" __attribute__((visibility("default"))) const rp::NetworkLibrary rp_network_library = {
    .version = RP_VERSION,
    .connect = []() -> std::unique_ptr<rp::NodeNetwork> { return std::make_unique<rp::MpiNetwork>(); }};
