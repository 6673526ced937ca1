#include "worker/worker.h"

#include <thread>
#include <utility>

#include "common/system/crash_point.h"

namespace rp {

namespace {

constexpr StreamKind kAllStreams[] = {StreamKind::kUploadParameters, StreamKind::kUploadActivations,
                                      StreamKind::kCompute, StreamKind::kDownload, StreamKind::kDownloadGradients};

}  // namespace

Worker::Worker(Store& store, int number, Device& device, StageExecutor& executor, std::optional<FaultBoardEntry> board,
               TraceJournal* trace, TaskRanges* ranges, std::unique_ptr<NodeGradients> nodes)
    : store_(store),
      number_(number),
      device_(device),
      executor_(executor),
      signals_(device.connect(store, number)),
      observers_(store, number, device, board, trace, ranges,
                 [this](std::exception_ptr error) { fail(std::move(error)); }),
      nodes_(std::move(nodes)) {}

Worker::~Worker() = default;

void Worker::serve() {
  const EpochWord& epoch = store_.epoch();
  SequenceWord& acknowledged = store_.worker_words(number_).acknowledged;
  if (epoch.observe().epoch != kEndEpoch) warm_up();
  RP_CRASH_POINT("worker.start.warms_up");
  if (has_failed_.load()) give_up();  // operations of the warm-up may not have ended
  check_failure();
  while (true) {
    const EpochState state = epoch.observe();
    RP_CRASH_POINT("worker.epoch.acknowledges");
    acknowledged.publish(state.epoch.value() + 1);
    RP_CRASH_POINT("worker.epoch.has_acknowledged");
    observers_.runner_idle();
    if (state.epoch == kEndEpoch) return;
    // SYNC: the acquire of the epoch pairs with its release when it begins; `takes_part` is not written until it ends.
    const bool takes_part = state.has_begun && store_.worker_words(number_).takes_part == state.epoch.value() + 1;
    takes_part ? serve_epoch(state) : wait_for_change(state);
    check_failure();
  }
}

void Worker::warm_up() {
  const auto warm = [this] {
    const std::int64_t since = now_ns();
    try {
      if (!executor_.warm_up(device_)) return;
    } catch (...) {
      device_.check_works();
      throw;
    }
    device_.stream(StreamKind::kCompute).drain();
    store_.worker_words(number_).warm_up_ns = now_ns() - since;
  };
  std::thread([&] {
    run_guarded("rp-compute", warm, [this](std::exception_ptr error) { fail(std::move(error)); });
  }).join();
}

void Worker::serve_epoch(const EpochState& state) {
  EpochService service(store_, number_, device_, executor_, *signals_, observers_, nodes_.get(),
                       [this](std::exception_ptr error) { fail(std::move(error)); });
  RP_CRASH_POINT("worker.epoch.begins");
  executor_.begin_epoch();
  device_.resume();
  set_service(&service);
  service.start();
  RP_CRASH_POINT("worker.epoch.serves");
  wait_for_change(state);
  RP_CRASH_POINT("worker.epoch.stops");
  service.stop();
  // A thread may be in a call of the driver that first completes an exchange, which other nodes may never join.
  if (nodes_ && has_failed_.load()) nodes_->abort();
  service.join();
  if (nodes_) nodes_->leave();  // the streams may wait for other nodes
  RP_CRASH_POINT("worker.epoch.has_stopped");
  set_service(nullptr);
  drain();
}

// Between two changes of the epoch, however long that takes, this thread only checks the device.
void Worker::wait_for_change(const EpochState& state) {
  while (store_.epoch().wait_change(state, {&has_failed_, kNsPerSecond}) == WaitResult::kTimedOut) check_device();
}

// If the device has failed, all threads may be waiting for work that it will never do.
void Worker::check_device() {
  try {
    device_.check();
  } catch (...) {
    fail(std::current_exception());
  }
}

void Worker::drain() {
  if (has_failed_.load() || store_.failed().observe() != 0) return give_up();
  try {
    for (const StreamKind kind : kAllStreams) device_.stream(kind).drain();
  } catch (...) {
    give_up();  // operations that have not ended would still call this worker
    throw;
  }
}

// After a failure, the device may wait for something that never happens. The process then ends, and
// ends the device's work.
void Worker::give_up() {
  constexpr std::int64_t kLastWaitNs = kNsPerSecond;
  device_.abandon();
  for (const StreamKind kind : kAllStreams) {
    if (!device_.stream(kind).drain_within(kLastWaitNs)) return;
  }
}

void Worker::fail(std::exception_ptr error) {
  {
    MutexLock lock(mutex_);
    if (!error_) error_ = std::move(error);
    if (service_ != nullptr) service_->stop();
  }
  has_failed_.store(true);
  store_.epoch().wake();
}

void Worker::set_service(EpochService* service) {
  MutexLock lock(mutex_);
  service_ = service;
}

void Worker::check_failure() {
  MutexLock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

}  // namespace rp
