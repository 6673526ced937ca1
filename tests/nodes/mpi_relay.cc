// Leaves the network of an MPI job while messages are passed on: mpirun starts it once per node.
//   mpi_relay <folder of libroundpipe_mpi.so> <number of nodes>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "nodes/network_library.h"
#include "tests/nodes/relay.h"

int main(int argc, char** argv) {
  constexpr int kNumRounds = 500;
  if (argc != 3) return EXIT_FAILURE;
  try {
    const auto network = rp::connect_nodes(std::atoi(argv[2]), argv[1]);
    const int num_arrived = rp::test::finish_during_relay(*network, kNumRounds);
    if (num_arrived == kNumRounds) return EXIT_SUCCESS;
    std::fprintf(stderr, "node %d: the token came %d times, not %d\n", network->place().node, num_arrived, kNumRounds);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  return EXIT_FAILURE;
}
