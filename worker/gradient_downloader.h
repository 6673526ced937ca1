// worker/gradient_downloader.h
// The last thread of a task's life: waits until the gradients in the store may be written, enqueues their download, and
// behind it the completion.
//
// Owned by the Worker; run() is its thread. Waits for `gradient_released` of each use. Writes to the store, in the
// order of the stream of gradients' downloads: the gradients, what the task found out (losses, square sums, layer
// times) in the round's table, and the completion ring. That stream must be drained before it is destroyed.
#pragma once

#include <cstddef>

#include "worker/copies/bulk_copies.h"
#include "worker/worker_parts.h"

namespace rp {

class GradientDownloader {
 public:
  // Both must outlive it.
  GradientDownloader(WorkerParts& worker, StageExecutor& executor);

  // Until the worker stops.
  void run();

  // Wakes run() if it waits for room in the download stream.
  void wake() const { copies_.wake(); }

 private:
  // A false result means: the worker stops.
  [[nodiscard]] bool enqueue_gradients(RunningTask& task);
  [[nodiscard]] bool enqueue_gradient(RunningTask& task, std::size_t use);
  // Runs in the download stream, after everything that the task wrote.
  static void complete(void* task);
  void write_totals(const RunningTask& task) const;
  [[nodiscard]] DeviceMemoryPeaks memory_of(const RunningTask& task) const;
  void tell_times(RunningTask& task);

  WorkerParts& worker_;
  StageExecutor& executor_;
  Stream& stream_;
  ThreadWaits waits_;
  BulkCopies copies_;
  RingWriter<Completion> completions_;  // the download stream's
};

}  // namespace rp
