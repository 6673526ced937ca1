// worker/thread_waits.h
// How a thread of a worker waits: patiently while the run goes on, and not for ever when it does not.
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
  // `record`: the thread's.
  ThreadWaits(Store& store, int worker, const TaskFlow& flow, WaitRecord record)
      : store_(store), worker_(worker), flow_(flow), record_(record) {}

  // Waits by wait_once(limits), again and again while any worker of the run computes or once the run has failed and is
  // to be ended by others. False: this worker stops. Throws `what` and the task if all stands still for too long: for
  // what other processes do after the store's wait_timeout_ns, for what this worker's own threads do later, so that the
  // thread that knows what is missing speaks first. The record says so meanwhile.
  template <typename WaitOnce>
  [[nodiscard]] bool wait(const Command& command, const Wait& what, WaitOnce wait_once) {
    const WaitResult at_once = wait_once(flow_.limits(0));
    // What was signalled after a violation was found is not used.
    if (at_once != WaitResult::kTimedOut) return at_once == WaitResult::kReached && !flow_.observe_stop();
    record_.publish(of_task(command, what));
    // Two waits of half the time: what computes in between is seen.
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

  // The oldest task of a queue: without one the thread has nothing to do. Nothing: this worker stops.
  [[nodiscard]] std::optional<RunningTask*> next_task(LocalQueue<RunningTask*>& queue) {
    return queue.pop(record_, {.kind = WaitKind::kNextTask});
  }
  // A device buffer for the task, which its threads give back in time. Null: this worker stops.
  template <typename Buffer>
  [[nodiscard]] Buffer* take_buffer(const Command& command, WaitKind what, LocalQueue<Buffer*>& free) {
    return free.pop(record_, of_task(command, {.kind = what})).value_or(nullptr);
  }

  // The thread's, for waits of another kind.
  [[nodiscard]] WaitRecord& record() { return record_; }

 private:
  [[nodiscard]] static Wait of_task(const Command& command, Wait what) {
    what.slot = static_cast<std::int64_t>(number_of(command.slot));
    return what;
  }
  [[noreturn]] void fail(const Command& command, const Wait& what) const;

  Store& store_;
  const int worker_;
  const TaskFlow& flow_;
  WaitRecord record_;
};

}  // namespace rp
