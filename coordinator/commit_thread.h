// coordinator/commit_thread.h
// Runs the thread that waits for the workers' completions and moves the commit point over the
// slots, in slot order (docs/design/protocol.md).
//
// Owned by the Coordinator. All constructor arguments must outlive it. Reads the completion rings;
// writes what the RoundFlow writes.
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
  // Starts the thread. It ends when stop() is called, which happens after the run has failed. If
  // the thread itself finds a failure, it calls `fail`, without holding the mutex. `waits`: the
  // thread's own record. `on_hang`: see Completions.
  CommitThread(Store& store, CoordinatorState& state, CoordinatorTrace& trace, WaitRecord waits,
               std::function<void()> on_hang, std::function<void(std::exception_ptr)> fail);

  // For any thread.
  void stop() { completions_.stop(); }
  // REQUIRES: stop() was called.
  void join() { thread_.join(); }
  [[nodiscard]] bool is_joined() const { return !thread_.joinable(); }

 private:
  void run();
  [[nodiscard]] bool commit_one();  // returns false if the run has failed

  CoordinatorState& state_;
  CoordinatorTrace& trace_;
  WaitRecord waits_;
  const std::function<void(std::exception_ptr)> fail_;
  Completions completions_;
  std::thread thread_;
};

}  // namespace rp
