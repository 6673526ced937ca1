#include "pipeline/process/worker_watch.h"

#include <pthread.h>
#include <sys/socket.h>

#include <cstring>
#include <utility>

#include "common/system/clock.h"
#include "common/text.h"
#include "pipeline/process/process_end.h"

namespace rp {

WorkerGone WorkerWatch::gone(int worker, const std::string& how) {
  workers_.at(worker).move_to(WorkerState::kGone, worker);
  return {ExitCode::kUserError, cat("worker ", worker, " ended ", how)};
}

void WorkerWatch::wait_until_serving(WaitRecord waits) {
  for (int worker = 0; worker < store_.num_workers(); ++worker) {
    while (store_.worker_words(worker).acknowledged.observe() == 0 && !workers_[worker].is(WorkerState::kLeft)) {
      waits.publish_once({.kind = WaitKind::kWorkerStart, .numbers = {worker}});
      if (const auto message = channel_.receive(Deadline::after_ns(5 * kNsPerMs))) {
        if (message->kind == MessageKind::kWorkerGone) throw gone(message->worker, "while it started");
        handle(*message);
      }
      if (stop_signal() != 0) throw Interrupted(stop_signal());
      if (channel_.peer_gone()) throw Error(ExitCode::kLauncherFailed, "rp-launch is gone");
    }
    waits.publish_none();
    if (workers_[worker].is(WorkerState::kStarting)) workers_[worker].move_to(WorkerState::kServing, worker);
  }
}

void WorkerWatch::start(std::function<void(std::exception_ptr)> fail) {
  fail_ = std::move(fail);
  thread_ = std::thread([this] { run(); });
}

void WorkerWatch::stop() {
  if (!thread_.joinable()) return;
  ::shutdown(channel_.fd(), SHUT_RD);
  thread_.join();
}

void WorkerWatch::run() {
  pthread_setname_np(pthread_self(), "rp-watch");
  while (!ends_are_expected_.load()) {
    const auto message = channel_.receive(Deadline::after_seconds(3600));
    if (channel_.peer_gone()) return;
    if (!message || ends_are_expected_.load()) continue;
    if (message->kind == MessageKind::kWorkerGone) {
      fail_(std::make_exception_ptr(gone(message->worker, "unexpectedly")));
    } else {
      handle(*message);
    }
  }
}

void WorkerWatch::handle(const Message& message) {
  if (message.kind == MessageKind::kSetAside && message.blob.size() == sizeof(SlotNumber)) {
    std::uint64_t slot = 0;
    std::memcpy(&slot, message.blob.data(), sizeof slot);
    return handlers_.set_aside(SlotNumber(slot));
  }
  if (message.kind != MessageKind::kWorkerLost && message.kind != MessageKind::kWorkerLeft) return;
  Lifecycle<kWorkerLifecycle>& worker = workers_.at(message.worker);
  worker.move_to(WorkerState::kGone, message.worker);
  handlers_.lose(message.worker);
  const bool is_replaced = message.kind == MessageKind::kWorkerLost;
  worker.move_to(is_replaced ? WorkerState::kStarting : WorkerState::kLeft, message.worker);
}

}  // namespace rp
