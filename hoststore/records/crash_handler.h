// hoststore/records/crash_handler.h
// Records why this process dies (signal, broken invariant, exception) in its entry of the fault board.
#pragma once

#include <cstddef>

#include "hoststore/records/fault_board.h"
#include "roundpipe/error.h"

namespace rp {

// Gives the calling thread a stack of its own for signal handlers, so that a stack overflow on it is recorded too.
// Must be destroyed by the thread that made it. Without one an overflow still ends the process, unrecorded.
class SignalStack {
 public:
  SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;
  ~SignalStack();

 private:
  void* memory_;
  std::size_t size_bytes_;
};

// From now on SEGV, BUS, FPE, ILL and ABRT and a failing RP_ASSERT are recorded in `entry` with a backtrace
// (symbol+offset where the module exports symbols, else module+offset); then the process ends by that same signal.
// Call once, in the main thread, which gets a SignalStack for the life of the process. The board must outlive the
// process's last thread. Safe with any number of threads crashing at once: the first is recorded.
void install_crash_handler(FaultBoardEntry entry);

// Records the exception that is being handled: an rp::Error with its code, anything else as kUserError. Returns the
// exit code that the process should end with. REQUIRES: called in a catch block or a terminate handler.
[[nodiscard]] ExitCode record_current_exception(FaultBoardEntry entry);

}  // namespace rp
