// worker/worker.h
// Runs one worker: takes commands, uploads weights, fetches inputs, computes and downloads results.
// A worker keeps no state beyond its own life.
//
// Each of four threads has a class of its own and does one part of a task's life: WeightUploader,
// InputUploader, StageRunner and GradientDownloader. They pass a task to each other through the
// TaskFlow. The thread that calls serve() watches the epoch and the device. Every wait is either
// for an earlier slot or for something that the coordinator does with earlier slots
// (docs/design/protocol.md).
//
// The Store, Device and StageExecutor must outlive the worker.
#pragma once

#include <exception>
#include <optional>

#include "common/mutex.h"
#include "device/device.h"
#include "hoststore/store.h"
#include "worker/executor/stage_executor.h"
#include "worker/gradient_downloader.h"
#include "worker/input_buffers.h"
#include "worker/input_uploader.h"
#include "worker/stage_runner.h"
#include "worker/weight_uploader.h"
#include "worker/worker_parts.h"

namespace rp {

class Worker {
 public:
  // `board` is the worker's entry of the fault board: the worker publishes there what it is doing
  // and what its threads wait for. `trace`, if not null, records what the threads did. `ranges`, if
  // not null, are the ranges of a profiler, which are opened around each computation. Trace and
  // ranges must outlive the worker.
  Worker(Store& store, int number, Device& device, StageExecutor& executor, std::optional<FaultBoardEntry> board = {},
         TraceJournal* trace = nullptr, TaskRanges* ranges = nullptr);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Serves until the coordinator ends the run. Throws rp::Error for failures that are not the fault
  // of a layer or a loss, such as a lack of memory.
  void serve();

 private:
  // Runs `function` in the calling thread, which is given this name. If it throws, the worker
  // stops, serve() rethrows the exception, and guard() returns false.
  template <typename Function>
  [[nodiscard]] bool guard(const char* name, Function function);
  // Stops the worker because it cannot continue; serve() then throws `error`. Only the first call
  // counts.
  void fail(std::exception_ptr error);
  void stop_all();
  void check_device();
  void drain(bool has_failed);
  void give_up();

  WorkerParts parts_;
  InputBuffers inputs_;
  WeightUploader weight_uploader_;
  InputUploader input_uploader_;
  StageRunner stage_runner_;
  GradientDownloader gradient_downloader_;

  Mutex mutex_;
  std::exception_ptr error_ RP_GUARDED_BY(mutex_);
};

}  // namespace rp
