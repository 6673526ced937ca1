// worker/thread_waits.h
// Waits for a fact or a task on behalf of one thread of a worker, and fails when the whole run
// makes no progress for too long.
//
// Owned by the thread's class and used by that thread only. Store and TaskFlow must outlive it.
#pragma once

#include <cstdint>
#include <optional>

#include "hoststore/records/wait_record.h"
#include "hoststore/store.h"
#include "worker/task_flow.h"

namespace rp {

class ThreadWaits {
 public:
  // `record` is the wait record of the thread.
  ThreadWaits(Store& store, int worker, const TaskFlow& flow, WaitRecord record)
      : store_(store), worker_(worker), flow_(flow), record_(record) {}

  // Blocks until wait_once(limits) returns kReached. Calls it again as long as any worker of the
  // run computes or any weights are updated, and also once the run has failed, because other
  // processes will then end it. Returns false if this worker stops. Throws rp::Error (kHang) that
  // names `what` and the task if the whole run makes no progress for too long: for the store's
  // wait_timeout_ns if `what` is done by another process, and for twice that time if it is done by
  // another thread of this worker. In this way the thread that knows what is missing reports first.
  // The record contains `what` while the call blocks.
  template <typename WaitOnce>
  [[nodiscard]] bool wait(const Command& command, const Wait& what, WaitOnce wait_once) {
    const WaitResult at_once = wait_once(flow_.limits(0));
    // A fact that was signalled after a violation was found must not be used.
    if (at_once != WaitResult::kTimedOut) return at_once == WaitResult::kReached && !flow_.observe_stop();
    record_.publish(of_task(command, what));
    // The timeout is divided into waits of half its length, so that progress in between is noticed.
    const int patience = what.is_for_own_thread() ? 4 : 2;
    int silent_waits = 0;
    while (silent_waits < patience) {
      const std::uint64_t progress = store_.progress();
      const WaitResult result = wait_once(flow_.limits(store_.header().wait_timeout_ns / 2));
      if (result == WaitResult::kReached) record_.publish_none();
      if (result != WaitResult::kTimedOut) return result == WaitResult::kReached && !flow_.observe_stop();
      const bool goes_on = store_.progress() != progress || store_.failed().observe() != 0;
      silent_waits = goes_on ? 0 : silent_waits + 1;
    }
    fail(command, what);
  }

  // Removes and returns the oldest task of `queue`. While the queue is empty, the thread has
  // nothing to do. Returns nothing if this worker stops.
  [[nodiscard]] std::optional<RunningTask*> next_task(LocalQueue<RunningTask*>& queue) {
    return queue.pop(record_, {.kind = WaitKind::kNextTask});
  }
  // Takes a device buffer for the task. Blocks until the worker's threads have returned one.
  // Returns null if this worker stops.
  template <typename Buffer>
  [[nodiscard]] Buffer* take_buffer(const Command& command, WaitKind what, LocalQueue<Buffer*>& free) {
    return free.pop(record_, of_task(command, {.kind = what})).value_or(nullptr);
  }

  // The thread's wait record, for waits that this class does not perform.
  [[nodiscard]] WaitRecord& record() { return record_; }

 private:
  [[nodiscard]] static Wait of_task(const Command& command, Wait what) {
    what.slot = static_cast<std::int64_t>(command.slot.number().value());
    return what;
  }
  [[noreturn]] void fail(const Command& command, const Wait& what) const;

  Store& store_;
  const int worker_;
  const TaskFlow& flow_;
  WaitRecord record_;
};

}  // namespace rp
