#include "coordinator/commit_thread.h"

#include <pthread.h>

#include <optional>
#include <utility>
#include <vector>

#include "common/system/clock.h"
#include "common/system/crash_point.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

CommitThread::CommitThread(Store& store, CoordinatorState& state, CoordinatorTrace& trace, WaitRecord waits,
                           std::function<void()> on_hang, OnSetAside on_set_aside,
                           std::function<void(std::exception_ptr)> fail)
    : store_(store),
      state_(state),
      trace_(trace),
      waits_(waits),
      on_hang_(std::move(on_hang)),
      on_set_aside_(std::move(on_set_aside)),
      fail_(std::move(fail)),
      completions_(store, on_hang_) {
  thread_ = std::thread([this] { run(); });
}

void CommitThread::run() {
  pthread_setname_np(pthread_self(), "rp-commit");
  try {
    for (Work work = wait_for_work(); work != Work::kEnd; work = wait_for_work()) {
      switch (work) {
        case Work::kCommit: commit_next(); break;
        case Work::kBeginEpoch: begin_epoch(); break;
        case Work::kReportSetAside: report_set_aside(); break;
        case Work::kEnd: break;
      }
    }
  } catch (...) {
    fail_(std::current_exception());
  }
}

CommitThread::Work CommitThread::wait_for_work() {
  MutexLock lock(state_.mutex);
  RoundFlow& flow = state_.flow;
  while (!state_.has_failed()) {
    if (!flow.is_changing_epoch()) flow.admit_ready_workers();
    if (flow.is_changing_epoch()) return Work::kBeginEpoch;
    completions_.resume();
    if (flow.slots().is_held()) return Work::kReportSetAside;
    if (flow.slots().num_committed() < flow.slots().num_dispatched()) {
      waits_.publish_none();
      return Work::kCommit;
    }
    state_.sleep(waits_, {.kind = WaitKind::kNextSlot});
  }
  return Work::kEnd;
}

void CommitThread::commit_next() {
  SlotNumber slot;
  int worker = 0;
  {
    MutexLock lock(state_.mutex);
    if (state_.flow.is_changing_epoch()) return;
    const Dispatcher::Next next = state_.flow.slots().next();
    slot = next.slot->number;
    worker = next.slot->worker;
  }
  const std::optional<Completion> completion = completions_.wait(worker, slot, waits_, [this] {
    MutexLock lock(state_.mutex);
    return state_.flow.flush_frees() ? Completions::kLongWait : Completions::kShortWait;
  });
  RP_CRASH_POINT("coordinator.commit.has_completion");
  std::exception_ptr failure;
  {
    MutexLock lock(state_.mutex);
    if (!completion || state_.has_failed() || state_.flow.is_changing_epoch()) return;
    const std::int64_t since = trace_.now();
    failure = state_.flow.commit(*completion);
    RP_CRASH_POINT("coordinator.commit.commits");
    trace_.commit(completion->slot, worker, since);
    if (failure) state_.fail(failure);
    state_.wake();
  }
  if (failure) fail_(failure);  // threads that wait for an update must fail, too
}

void CommitThread::report_set_aside() {
  constexpr std::int64_t kSliceNs = 100 * kNsPerMs;
  std::optional<Command> command;
  {
    MutexLock lock(state_.mutex);
    command = state_.flow.set_aside_task();
  }
  if (!command) return;
  const std::atomic<bool> never{false};
  const Catalogue& catalogue = store_.catalogue();
  for (int layer = command->first_layer; layer < command->end_layer; ++layer) {
    for (const UseId use : catalogue.uses_of(command->catalogue_layer(layer))) {
      const GroupId group = catalogue.uses()[use].group;
      const Version version = catalogue.weight_groups()[group].version_in(command->version);
      while (store_.published(group).wait_at_least(version, {&never, kSliceNs}) != WaitResult::kReached) {
        MutexLock lock(state_.mutex);
        if (state_.has_failed()) return;
      }
    }
  }
  on_set_aside_(*command);
}

void CommitThread::begin_epoch() {
  constexpr std::int64_t kSliceNs = 10 * kNsPerMs;
  const std::int64_t timeout_ns = store_.header().wait_timeout_ns;
  Patience patience(timeout_ns);
  while (true) {
    std::optional<int> missing;
    Epoch epoch;
    {
      MutexLock lock(state_.mutex);
      if (state_.has_failed()) return;
      missing = state_.flow.missing_worker();
      epoch = state_.flow.epoch();
      const std::vector<int> ready = state_.flow.ready_workers();
      if (!missing && !ready.empty()) {
        RP_CRASH_POINT("coordinator.epoch.begins");
        completions_.discard();
        state_.flow.begin_epoch(ready);
        RP_CRASH_POINT("coordinator.epoch.has_begun");
        waits_.publish_none();
        return;
      }
      completions_.resume();
    }
    const int worker = missing.value_or(0);  // if no worker is left, a replacement of any of them will do
    waits_.publish_once({.kind = WaitKind::kWorkerStart, .numbers = {worker}});
    (void)store_.worker_words(worker).acknowledged.wait_at_least(epoch.value() + 1,
                                                                 {&completions_.is_interrupted(), kSliceNs});
    if (patience.left_ns() > 0) continue;
    if (on_hang_) on_hang_();
    const std::int64_t seconds = timeout_ns / kNsPerSecond;
    throw Error(ExitCode::kHang, missing
                                     ? cat("worker ", worker, " did not drop its task within ", seconds,
                                           " s after the workers that take part had changed; is it stopped?")
                                     : cat("no worker is left, and no replacement has started within ", seconds, " s"));
  }
}

}  // namespace rp
