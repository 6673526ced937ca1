#include "worker/epoch_service.h"

#include <pthread.h>

#include <utility>

#include "hoststore/records/crash_handler.h"

namespace rp {

void run_guarded(const char* name, const std::function<void()>& function,
                 const std::function<void(std::exception_ptr)>& fail) {
  pthread_setname_np(pthread_self(), name);
  const SignalStack stack;  // so that a layer that overflows the stack is reported, too
  try {
    function();
  } catch (...) {
    fail(std::current_exception());
  }
}

EpochService::EpochService(Store& store, int worker, Device& device, StageExecutor& executor, OutputSignals& signals,
                           WorkerObservers& observers, NodeGradients* nodes,
                           std::function<void(std::exception_ptr)> fail)
    : fail_(std::move(fail)),
      parts_(store, worker, device, signals, observers, nodes),
      inputs_(device),
      weight_uploader_(parts_),
      input_uploader_(parts_, inputs_),
      stage_runner_(parts_, executor, weight_uploader_, inputs_),
      gradient_downloader_(parts_, executor) {}

EpochService::~EpochService() {
  if (threads_.empty()) return;
  stop();
  join();
}

void EpochService::start() {
  threads_.reserve(4);
  try {
    start_thread("rp-weights", weight_uploader_);
    start_thread("rp-inputs", input_uploader_);
    start_thread("rp-gradients", gradient_downloader_);
    start_thread("rp-compute", stage_runner_);
  } catch (...) {  // no further thread could be created
    fail_(std::current_exception());
  }
}

template <typename Thread>
void EpochService::start_thread(const char* name, Thread& thread) {
  threads_.emplace_back([this, name, &thread] {
    run_guarded(
        name, [&thread] { thread.run(); }, fail_);
  });
}

void EpochService::stop() {
  parts_.flow.stop();
  parts_.device.stop();
  weight_uploader_.wake();
  inputs_.wake();
  stage_runner_.wake();
  gradient_downloader_.wake();
  parts_.store.wake_waiters();
}

void EpochService::join() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace rp
