// worker/worker.h
// One worker: takes commands, uploads weights, fetches inputs, computes, downloads results. It has no state that
// outlives it.
//
// Threads, each with a part of a task's life and a class of its own: WeightUploader, InputUploader, StageRunner,
// GradientDownloader. A task goes from one to the next through the TaskFlow. serve()'s own thread watches the epoch and
// the device. Every wait is for earlier slots or for what the coordinator does with them (docs/design/protocol.md).
//
// The Store, Device and StageExecutor must outlive it.
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
  // Says on `board`, its entry of the fault board, what it is doing and what its threads wait for; and in `trace`, if
  // there is one, what they did. `ranges`, if a profiler watches: around what it computes; they must outlive it.
  Worker(Store& store, int number, Device& device, StageExecutor& executor, std::optional<FaultBoardEntry> board = {},
         TraceJournal* trace = nullptr, TaskRanges* ranges = nullptr);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Serves until the coordinator ends the run. Throws rp::Error for what is not a layer's or loss's fault, as memory
  // that is missing.
  void serve();

 private:
  // Runs what a thread of this name does; an exception ends the worker, is rethrown by serve(), and gives false.
  template <typename Function>
  [[nodiscard]] bool guard(const char* name, Function function);
  // The worker cannot go on: it stops, and serve() throws `error`. The first call counts.
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
