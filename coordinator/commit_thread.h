// coordinator/commit_thread.h
// The thread that follows what the workers complete and moves the commit point over the slots, in slot order
// (docs/design/protocol.md).
//
// Owned by the Coordinator. All that it is given must outlive it. Reads the completion rings; writes what the RoundFlow
// does.
#pragma once

#include <exception>
#include <functional>
#include <thread>

#include "coordinator/coordinator_state.h"
#include "coordinator/coordinator_trace.h"
#include "coordinator/rounds/completions.h"
#include "hoststore/records/wait_record.h"
#include "hoststore/store.h"

namespace rp {

class CommitThread {
 public:
  // Starts it. It ends after the run has failed, of which it is told by stop(); what it finds itself it tells `fail`,
  // without the mutex. `waits`: its record. `on_hang`: see Completions.
  CommitThread(Store& store, CoordinatorState& state, CoordinatorTrace& trace, WaitRecord waits,
               std::function<void()> on_hang, std::function<void(std::exception_ptr)> fail);

  // Any thread's.
  void stop() { completions_.stop(); }
  // REQUIRES: stop() was called.
  void join() { thread_.join(); }
  [[nodiscard]] bool is_joined() const { return !thread_.joinable(); }

 private:
  void run();
  [[nodiscard]] bool commit_one();  // false: the run has failed

  CoordinatorState& state_;
  CoordinatorTrace& trace_;
  WaitRecord waits_;
  const std::function<void(std::exception_ptr)> fail_;
  Completions completions_;
  std::thread thread_;
};

}  // namespace rp
