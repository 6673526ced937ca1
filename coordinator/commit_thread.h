// coordinator/commit_thread.h
// Runs the thread that waits for the workers' completions and moves the commit point over the
// slots, in slot order (docs/design/protocol.md). Between two epochs it waits for the workers instead
// (docs/design/replay.md).
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

// Takes a task that was set aside because it ends its workers. Its weights and inputs are final. Must throw.
using OnSetAside = std::function<void(const Command&)>;

class CommitThread {
 public:
  // Starts the thread. It ends when interrupt() is called after the run has failed. If
  // the thread itself finds a failure, it calls `fail`, without holding the mutex. `waits`: the
  // thread's own record. `on_hang`: see Completions; `on_set_aside`: see CoordinatorOptions.
  CommitThread(Store& store, CoordinatorState& state, CoordinatorTrace& trace, WaitRecord waits,
               std::function<void()> on_hang, OnSetAside on_set_aside, std::function<void(std::exception_ptr)> fail);

  // Makes the thread look at the shared state again: the run has failed, or the epoch has ended. For any thread.
  void interrupt() { completions_.interrupt(); }
  // REQUIRES: the run has failed, and interrupt() was called after that.
  void join() { thread_.join(); }
  [[nodiscard]] bool is_joined() const { return !thread_.joinable(); }

 private:
  void run();
  enum class Work { kCommit, kBeginEpoch, kReportSetAside, kEnd };
  // Sleeps until there is something to do.
  [[nodiscard]] Work wait_for_work();
  // Commits the next slot. Does nothing if it is interrupted before the slot is complete.
  void commit_next();
  // Waits until all workers have stopped, and begins the epoch that is wanted.
  void begin_epoch();
  // Passes on the task that was set aside. Does nothing if the run fails before its weights are final.
  void report_set_aside();

  Store& store_;
  CoordinatorState& state_;
  CoordinatorTrace& trace_;
  WaitRecord waits_;
  const std::function<void()> on_hang_;
  const OnSetAside on_set_aside_;
  const std::function<void(std::exception_ptr)> fail_;
  Completions completions_;
  std::thread thread_;
};

}  // namespace rp
