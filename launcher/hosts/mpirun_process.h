// launcher/hosts/mpirun_process.h
// Finds mpirun, and describes how it is started.
#pragma once

#include "launcher/machine/child_process.h"

namespace rp {

// Blocks the signals of SignalReader::handled() in this process, and returns what mpirun is started with, except its
// arguments: without the variables that concern the whole run, and with the signals as they were. REQUIRES: called
// once. Throws rp::Error kNotFound if there is no mpirun.
[[nodiscard]] ChildSpec mpirun_spec();

}  // namespace rp
