// hoststore/records/crash_handler.h
// Records why this process dies (signal, broken invariant, exception) in its entry of the fault board.
#pragma once

#include <cstddef>

#include "common/exception_description.h"
#include "hoststore/records/fault_board.h"

namespace rp {

// Gives the calling thread a separate stack for signal handlers, so that a stack overflow of the
// thread is recorded, too. Must be destroyed by the thread that created it. Without a SignalStack,
// an overflow still ends the process, but is not recorded.
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

// From this call on, SEGV, BUS, FPE, ILL, ABRT and failing RP_ASSERTs are recorded in `entry` with
// a backtrace (symbol+offset if the module exports symbols, otherwise module+offset). The
// process then ends by the same signal. Call once, in the main thread, which gets a SignalStack for
// the life of the process. The board must outlive the last thread of the process. Any number of
// threads may crash at the same time; the first fault is recorded. `waits_for_debugger`: before the process ends, it
// waits for FaultBoardEntry::publish_debugger_left().
void install_crash_handler(FaultBoardEntry entry, bool waits_for_debugger = false);

// Records an exception that ends the process.
void record_exception(FaultBoardEntry entry, const ExceptionDescription& exception);

}  // namespace rp
