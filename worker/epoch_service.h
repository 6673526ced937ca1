// worker/epoch_service.h
// Serves one epoch of a worker: runs the four threads that upload, compute and download, until it is stopped.
//
// Each thread has a class of its own and does one part of a task's life: WeightUploader, InputUploader, StageRunner and
// GradientDownloader. They pass a task to each other through the TaskFlow. Every wait is either for an earlier slot or
// for something that the coordinator does with earlier slots (docs/design/protocol.md).
//
// Owned by the Worker, whose arguments must outlive it. Nothing of it is used in the next epoch.
#pragma once

#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "worker/executor/stage_executor.h"
#include "worker/gradient_downloader.h"
#include "worker/input_buffers.h"
#include "worker/input_uploader.h"
#include "worker/stage_runner.h"
#include "worker/weight_uploader.h"
#include "worker/worker_parts.h"

namespace rp {

// Calls `function` in the calling thread, which is given this name. If it throws, calls `fail` with the exception.
void run_guarded(const char* name, const std::function<void()>& function,
                 const std::function<void(std::exception_ptr)>& fail);

class EpochService {
 public:
  // `fail`: called by a thread that cannot go on; it must call stop().
  EpochService(Store& store, int worker, Device& device, StageExecutor& executor, OutputSignals& signals,
               WorkerObservers& observers, NodeGradients* nodes, std::function<void(std::exception_ptr)> fail);
  ~EpochService();  // stops the threads if join() was not called
  EpochService(const EpochService&) = delete;
  EpochService& operator=(const EpochService&) = delete;

  // Starts the threads. Calls `fail` if that is not possible.
  void start();
  // Makes all threads drop their tasks and end. Thread-safe.
  void stop();
  // Waits until all threads have ended. REQUIRES: stop() was called.
  void join();

 private:
  template <typename Thread>
  void start_thread(const char* name, Thread& thread);

  const std::function<void(std::exception_ptr)> fail_;
  WorkerParts parts_;
  InputBuffers inputs_;
  WeightUploader weight_uploader_;
  InputUploader input_uploader_;
  StageRunner stage_runner_;
  GradientDownloader gradient_downloader_;
  std::vector<std::thread> threads_;
};

}  // namespace rp
