// Implements the part of Session::Impl that serves as a worker, starts the workers of a run, or computes a task that
// was set aside.
#include <fcntl.h>
#include <pthread.h>

#include <cstdio>
#include <exception>
#include <iostream>
#include <utility>

#include "common/system/crash_point.h"
#include "common/system/retry.h"
#include "common/text.h"
#include "launcher/process/watching_tool.h"
#include "launcher/process/worker_attach.h"
#include "pipeline/process/process_end.h"
#include "pipeline/process/set_aside_task.h"
#include "pipeline/session_impl.h"

namespace rp {

void Session::Impl::replay_task() {
  const Command command = runtime_->create_task_store(role_.task_file);
  Store& store = runtime_->store();
  Mutex mutex;
  std::exception_ptr failure;
  start_workers({.lose = {}, .set_aside = {}}, [&](const std::exception_ptr& error) {
    MutexLock lock(mutex);
    failure = error;
  });
  board_entry().publish_state(ProcessState::kAttached);
  std::string text;
  try {
    text = compute_task(store, command, board_entry().waits(CoordinatorThread::kCommit), [&] {
      MutexLock lock(mutex);
      return failure != nullptr;
    });
  } catch (...) {
    end_process(std::current_exception());  // the thread that watches the worker uses this function's variables
  }
  MutexLock lock(mutex);
  if (failure) end_process(failure);
  watch_->expect_ends();
  send(MessageKind::kFinished);
  watch_->stop();
  store.epoch().publish_wanted(kEndEpoch);
  std::fputs(cat("roundpipe: ", text).c_str(), stderr);
  leave(0);
}

void Session::Impl::end_for(const Command& set_aside) {
  const Error error = set_aside_error(runtime_->store(), set_aside, role_.settings);
  send(MessageKind::kTaskSetAside);
  if (!runtime_->records_steps()) throw error;
  // Another process saves the state: this one's next step would wait for the task.
  std::fputs(cat("roundpipe: error: ", error.what(), "\n").c_str(), stderr);
  leave(static_cast<int>(error.code()));
}

void Session::Impl::serve_as_worker() {
  try {
    Patience patience(*settings_.attach_timeout_seconds * kNsPerSecond);
    Message attach = receive_attach(*role_.channel, patience);
    RP_CRASH_POINT("worker.start.receives");
    trace_ = RunTrace::take_from(attach);
    const std::unique_ptr<Store> store = Store::attach(std::move(attach.descriptors));
    RP_CRASH_POINT("worker.start.attaches");
    runtime_->compare_with(*store);
    std::cout.flush();
    std::fflush(nullptr);
    confirm_attached(*role_.channel, patience);
    RP_CRASH_POINT("worker.start.confirms");
    board_entry().publish_state(ProcessState::kAttached);
    // Then the device frees everything: a tool may report memory that was not freed, and profilers
    // write their reports when a context ends.
    const ServeEnd end = watching_tool().empty() ? ServeEnd::kEndOfProcess : ServeEnd::kProcessGoesOn;
    RP_CRASH_POINT("worker.start.serves");
    runtime_->serve({.store = *store, .worker = role_.worker, .board = board_entry(), .trace = journal(), .end = end});
    leave(0);
  } catch (...) {
    const ExceptionDescription exception = describe_without_backtrace();
    record_exception(board_entry(), exception);  // rp-launch prints the record of the worker that failed first
    leave(static_cast<int>(exception.code));
  }
}

void Session::Impl::start_own_worker() {
  worker_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "rp-worker");
    try {
      runtime_->serve(
          {.store = runtime_->store(), .board = board_->entry(1), .trace = journal(), .has_own_process = false});
    } catch (const Error& error) {
      if (error.code() == ExitCode::kHang) report_hang();
      runtime_->coordinator().fail(std::current_exception());
    } catch (...) {
      runtime_->coordinator().fail(std::current_exception());
    }
  });
}

void Session::Impl::start_workers(WorkerWatch::Handlers handlers, std::function<void(std::exception_ptr)> fail) {
  Message message{.kind = MessageKind::kStartWorkers, .blob = {}, .descriptors = {}};
  for (const int fd : runtime_->store().descriptors()) {
    message.descriptors.emplace_back(retry_interrupted([fd] { return fcntl(fd, F_DUPFD_CLOEXEC, 3); }));
    if (message.descriptors.back()) continue;
    throw Error(ExitCode::kNoResource, cat("cannot pass the host store on (", errno_text(errno),
                                           "); raise the limit on open files (ulimit -n)"));
  }
  if (trace_) trace_->append_to(message);
  tell_limit(MessageKind::kWaitTimeout, wait_timeout_seconds_);
  tell_limit(MessageKind::kAttachTimeout, *settings_.attach_timeout_seconds);
  if (!role_.channel->send(message)) throw Error(ExitCode::kLauncherFailed, "rp-launch does not take the host store");
  watch_.emplace(*role_.channel, runtime_->store(), std::move(handlers));
  watch_->wait_until_serving(user_waits());
  watch_->start(std::move(fail));
}

WorkerWatch::Handlers Session::Impl::worker_handlers() {
  return {.lose =
              [this](int worker) {
                runtime_->coordinator().lose_worker(worker);
                // Without the answer no replacement starts.
                while (!send(MessageKind::kWorkerDropped, worker) && !role_.channel->peer_gone())
                  sleep_until_ns(now_ns() + kNsPerMs);
              },
          .set_aside = [this](SlotNumber slot) { runtime_->coordinator().set_aside(slot); }};
}

// If the message does not arrive, rp-launch keeps the default.
void Session::Impl::tell_limit(MessageKind kind, int seconds) {
  MutexLock lock(send_mutex_);
  (void)role_.channel->send({.kind = kind, .status = seconds, .blob = {}, .descriptors = {}});
}

}  // namespace rp
