// worker/gradient_downloader.h
// Waits until the gradients in the store may be written, then enqueues their download and, after
// it, the completion of the task. A task's life ends here.
//
// Owned by the EpochService. run() is executed by the gradient downloader's thread. It waits for
// `gradient_released` of each use. It writes to the store, in the order of the gradient download
// stream: the gradients, the results of the task (losses, square sums, layer times and layer
// memory) in the round's table, and the completion ring. The stream must be drained before it is
// destroyed.
#pragma once

#include <cstddef>
#include <span>

#include "worker/copies/bulk_copies.h"
#include "worker/worker_parts.h"

namespace rp {

class GradientDownloader {
 public:
  // Both arguments must outlive it.
  GradientDownloader(WorkerParts& worker, StageExecutor& executor);

  // Downloads gradients until the worker stops.
  void run();

  // Wakes run() if it waits for a piece of a download or for other nodes.
  void wake() const {
    copies_.wake();
    if (worker_.nodes != nullptr) worker_.nodes->wake();
  }

 private:
  // These return false if the worker stops.
  [[nodiscard]] bool enqueue_gradients(RunningTask& task);
  [[nodiscard]] bool enqueue_gradient(RunningTask& task, std::size_t use);
  // Exchanges the gradients with other nodes, then downloads what this node owns of all of them.
  [[nodiscard]] bool exchange_gradients(RunningTask& task);
  [[nodiscard]] bool wait_released(const Command& command, UseId use);
  // Enqueues a copy of a gradient, or of a part of one, to the host's buffer.
  [[nodiscard]] bool copy(const Command& command, UseId use, std::byte* to, std::span<const std::byte> from);
  // Called by the gradient download stream after everything that the task writes.
  static void complete(void* argument);
  void write_totals(const RunningTask& task) const;
  [[nodiscard]] DeviceMemoryPeaks memory_of(const RunningTask& task) const;
  void report_times(RunningTask& task);

  WorkerParts& worker_;
  StageExecutor& executor_;
  Stream& stream_;
  ThreadWaits waits_;
  BulkCopies copies_;
  RingWriter<Completion> completions_;  // writer: the gradient download stream
};

}  // namespace rp
