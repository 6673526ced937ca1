// worker/finisher.h
// The last thread of a task's life: waits until gradient blocks of the store may be written, enqueues their download, and
// behind it the completion.
//
// Owned by the Worker; run() is its thread. Waits for `taken` of each gradient block. Of the store it writes the gradient
// blocks, the task's layer times and square sums in the round's table, and the completion ring, by the download stream; that
// stream must be drained before it is destroyed.
#pragma once

#include <cstddef>

#include "worker/bulk_copies.h"
#include "worker/worker_parts.h"

namespace rp {

class Finisher {
 public:
  explicit Finisher(WorkerParts& worker);

  // Until the worker stops.
  void run();

  // Wakes run() if it waits for room in the download stream.
  void wake() const { copies_.wake(); }

 private:
  void write_layer_times(const RunningTask& task);
  // A false result means: the worker stops.
  [[nodiscard]] bool enqueue_gradients(RunningTask& task);
  [[nodiscard]] bool enqueue_gradient(RunningTask& task, std::size_t use);
  // Runs in the download stream, after everything that the task wrote.
  static void complete(void* task);

  WorkerParts& worker_;
  Stream& stream_;
  ThreadWaits waits_;
  BulkCopies copies_;
  RingWriter<Completion> completions_;  // the download stream's
};

}  // namespace rp
