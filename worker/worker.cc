#include "worker/worker.h"

#include <pthread.h>

#include <latch>
#include <thread>
#include <utility>
#include <vector>

#include "hoststore/records/crash_handler.h"

namespace rp {

namespace {

constexpr StreamKind kAllStreams[] = {StreamKind::kUploadParameters, StreamKind::kUploadActivations,
                                      StreamKind::kCompute, StreamKind::kDownload, StreamKind::kDownloadGradients};

}  // namespace

Worker::Worker(Store& store, int number, Device& device, StageExecutor& executor, std::optional<FaultBoardEntry> board,
               TraceJournal* trace, TaskRanges* ranges)
    : parts_(store, number, device, board, trace, ranges, [this](std::exception_ptr error) { fail(std::move(error)); }),
      inputs_(device),
      weight_uploader_(parts_),
      input_uploader_(parts_, inputs_),
      stage_runner_(parts_, executor, weight_uploader_, inputs_),
      gradient_downloader_(parts_, executor) {}

Worker::~Worker() = default;

void Worker::serve() {
  const NumberWord<Epoch>& epoch_word = parts_.store.epoch();
  const Epoch epoch = epoch_word.observe();
  SequenceWord& acknowledged = parts_.store.worker_words(parts_.number).acknowledged;
  if (epoch == kEndEpoch) return acknowledged.publish(epoch.value() + 1);  // the run ended before this worker began
  // A coordinator in the same process does not wait for the acknowledgement and may have sent
  // commands already. So the other threads, which copy, start their work only when the stage runner
  // is warm.
  std::latch is_warm(1);
  const auto start = [this, &is_warm](const char* name, auto& thread) {
    return std::thread([this, &is_warm, name, &thread] {
      is_warm.wait();
      (void)guard(name, [&thread] { thread.run(); });
    });
  };
  std::vector<std::thread> threads;
  threads.reserve(4);
  try {
    threads.push_back(start("rp-weights", weight_uploader_));
    threads.push_back(start("rp-inputs", input_uploader_));
    threads.push_back(start("rp-gradients", gradient_downloader_));
    threads.emplace_back([this, epoch, &acknowledged, &is_warm] {
      if (guard("rp-compute", [this] { stage_runner_.warm_up(); })) acknowledged.publish(epoch.value() + 1);
      is_warm.count_down();
      (void)guard("rp-compute", [this] { stage_runner_.run(); });
    });
  } catch (...) {  // no further thread could be created: the stage runner, which is the last, has not started
    fail(std::current_exception());
    is_warm.count_down();
  }
  // Between two changes of the epoch, however long that takes, this thread only checks the device.
  while (epoch_word.wait_at_least(epoch + 1, parts_.flow.limits(kNsPerSecond)) == WaitResult::kTimedOut) check_device();
  stop_all();
  for (std::thread& thread : threads) thread.join();
  MutexLock lock(mutex_);
  drain(error_ != nullptr || parts_.store.failed().observe() != 0);
  if (error_) std::rethrow_exception(error_);
}

// If the device has failed, all threads may be waiting for work that it will never do.
void Worker::check_device() {
  try {
    parts_.device.check();
  } catch (...) {
    fail(std::current_exception());
  }
}

void Worker::drain(bool has_failed) {
  if (has_failed) return give_up();
  try {
    for (const StreamKind kind : kAllStreams) parts_.device.stream(kind).drain();
  } catch (...) {
    give_up();  // operations that have not ended would still call this worker
    throw;
  }
}

// After a failure, the device may wait for something that never happens. The process then ends, and
// ends the device's work.
void Worker::give_up() {
  constexpr std::int64_t kLastWaitNs = kNsPerSecond;
  parts_.device.abandon();
  for (const StreamKind kind : kAllStreams) {
    if (!parts_.device.stream(kind).drain_within(kLastWaitNs)) return;
  }
}

template <typename Function>
bool Worker::guard(const char* name, Function function) {
  pthread_setname_np(pthread_self(), name);
  const SignalStack stack;  // so that a layer that overflows the stack is reported, too
  try {
    function();
    return true;
  } catch (...) {
    fail(std::current_exception());
    return false;
  }
}

void Worker::fail(std::exception_ptr error) {
  {
    MutexLock lock(mutex_);
    if (!error_) error_ = std::move(error);
  }
  stop_all();
}

void Worker::stop_all() {
  parts_.flow.stop();
  parts_.device.stop();
  weight_uploader_.wake();
  inputs_.wake();
  stage_runner_.wake();
  gradient_downloader_.wake();
  parts_.store.epoch().wake();
}

}  // namespace rp
