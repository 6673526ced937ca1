#include "coordinator/commit_thread.h"

#include <pthread.h>

#include <optional>
#include <utility>

namespace rp {

CommitThread::CommitThread(Store& store, CoordinatorState& state, CoordinatorTrace& trace, WaitRecord waits,
                           std::function<void()> on_hang, std::function<void(std::exception_ptr)> fail)
    : state_(state), trace_(trace), waits_(waits), fail_(std::move(fail)), completions_(store, std::move(on_hang)) {
  thread_ = std::thread([this] { run(); });
}

void CommitThread::run() {
  pthread_setname_np(pthread_self(), "rp-commit");
  try {
    while (commit_one()) {}
  } catch (...) {
    fail_(std::current_exception());
  }
}

bool CommitThread::commit_one() {
  SlotNumber slot;
  int worker = 0;
  {
    MutexLock lock(state_.mutex);
    const Dispatcher& slots = state_.flow.slots();
    while (!state_.has_failed() && slots.num_committed() >= slots.num_dispatched()) {
      state_.sleep(waits_, {.kind = WaitKind::kNextSlot});
    }
    if (state_.has_failed()) return false;
    waits_.publish_none();
    const Dispatcher::Next next = slots.next();
    slot = next.slot->number;
    worker = next.slot->worker;
  }
  const std::optional<Completion> completion = completions_.wait(worker, slot, waits_, [this] {
    MutexLock lock(state_.mutex);
    return state_.flow.flush_frees() ? Completions::kLongWait : Completions::kShortWait;
  });
  if (!completion) return false;
  std::exception_ptr failure;
  {
    MutexLock lock(state_.mutex);
    if (state_.has_failed()) return false;
    const std::int64_t since = trace_.now();
    failure = state_.flow.commit(*completion);
    trace_.commit(completion->slot, worker, since);
    if (failure) state_.fail(failure);
    state_.wake();
  }
  if (failure) fail_(failure);  // threads that wait for an update must fail, too
  return !failure;
}

}  // namespace rp
