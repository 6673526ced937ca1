// worker/worker.h
// Runs one worker: follows the epochs of the run, and serves those in which it takes part (docs/design/replay.md). A
// worker keeps no state beyond its own life, and its threads keep none beyond an epoch.
//
// The thread that calls serve() watches the epoch and the device. In an epoch, the threads of an EpochService do the
// work.
//
// The Store, Device and StageExecutor must outlive the worker.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <optional>

#include "common/mutex.h"
#include "device/device.h"
#include "hoststore/store.h"
#include "worker/epoch_service.h"
#include "worker/executor/stage_executor.h"
#include "worker/observers/worker_observers.h"

namespace rp {

class Worker {
 public:
  // `board` is the worker's entry of the fault board: the worker publishes there what it is doing
  // and what its threads wait for. `trace`, if not null, records what the threads did. `ranges`, if
  // not null, are the ranges of a profiler, which are opened around each computation. Trace and
  // ranges must outlive the worker. `nodes`: with Reduce::kNccl.
  Worker(Store& store, int number, Device& device, StageExecutor& executor, std::optional<FaultBoardEntry> board = {},
         TraceJournal* trace = nullptr, TaskRanges* ranges = nullptr, std::unique_ptr<NodeGradients> nodes = nullptr);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Serves until the coordinator ends the run. Throws rp::Error for failures that are not the fault
  // of a layer or a loss, such as a lack of memory.
  void serve();

 private:
  void warm_up();
  // These return when the state of the epoch is not `state` any more, or the worker has failed.
  void serve_epoch(const EpochState& state);
  void wait_for_change(const EpochState& state);
  // Stops the worker because it cannot continue; serve() then throws `error`. Only the first call
  // counts.
  void fail(std::exception_ptr error);
  void set_service(EpochService* service);
  void check_failure();
  void check_device();
  void drain();
  void give_up();

  Store& store_;
  const int number_;
  Device& device_;
  StageExecutor& executor_;
  const std::unique_ptr<OutputSignals> signals_;
  WorkerObservers observers_;
  const std::unique_ptr<NodeGradients> nodes_;  // may be nullptr

  std::atomic<bool> has_failed_{false};  // ends the wait for the epoch
  Mutex mutex_;
  std::exception_ptr error_ RP_GUARDED_BY(mutex_);
  EpochService* service_ RP_GUARDED_BY(mutex_) = nullptr;  // of the present epoch
};

}  // namespace rp
