// launcher/process/control_signal.h
// The request that `rp-launch ctl` sends to an rp-launch process: a signal with a value.
//
// The kernel lets only the same user (or root) signal a process, so there is nothing to open and nothing to protect.
#pragma once

#include <csignal>

namespace rp {

// Asks to start a worker that has left the run; the value is its number.
inline int add_worker_signal() { return SIGRTMIN; }

}  // namespace rp
