// launcher/hosts/mpi_parent.h
// Ends the process of Open MPI that has started this rp-launch, when it would stay although the run is over.
#pragma once

#include "roundpipe/error.h"

namespace rp {

// Called when an rp-launch that is one of several nodes ends with a failure; `code`: with which. Also called at the
// start of an rp-launch that another one watches over the network, with code 0. Does not wait: starts a process for it,
// which ends with the process of Open MPI. REQUIRES: this process has one thread.
//
// - A daemon (orted) that cannot pass on what is left to say, because this host is cut off, would stay for 15 minutes.
// - mpirun, if another rp-launch has started it, would wait for a host that is lost (kNodeLost).
void end_mpi_parent(int code);

}  // namespace rp
