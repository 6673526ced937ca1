// worker/weight_uploader.h
// The first thread of a task's life: takes commands and uploads the weights of the next task while one computes.
//
// Owned by the Worker. run() is the weight uploader's thread; wait_weights() the stage runner's. Waits for `published`
// of each weight group and for the loss scale; writes the head of the command ring. The upload stream must be drained
// before it is destroyed.
#pragma once

#include <cstdint>

#include "device/stream_signal.h"
#include "worker/copies/bulk_copies.h"
#include "worker/stage_memory.h"
#include "worker/worker_parts.h"

namespace rp {

class WeightUploader {
 public:
  explicit WeightUploader(WorkerParts& worker);

  // Until the worker stops. A task is given to input uploader and runner before its weights are uploaded.
  void run();

  // Until the weights of the worker's task number `serial` are there, and with them what else the weight uploader fills
  // in.
  [[nodiscard]] WaitResult wait_weights(std::uint64_t serial, const WaitLimits& limits) const {
    return weights_ready_.wait_at_least(serial, limits);
  }
  // What `stream` computes from now on comes after them. REQUIRES: wait_weights() said kReached.
  void compute_after_weights(std::uint64_t serial, Stream& stream) const {
    weights_ready_.enqueue_wait(serial, stream);
  }

  // Wakes who waits for a command, for room in the upload stream, or for weights.
  void wake() const;

 private:
  // A false result means: the worker stops.
  [[nodiscard]] bool take_command(Command& command);
  [[nodiscard]] bool feed(RunningTask& task);
  void prepare_gradients(const Command& command);
  [[nodiscard]] bool upload_weights(RunningTask& task);
  [[nodiscard]] bool upload_group(RunningTask& task, const UseMemory& memory);
  [[nodiscard]] bool find_loss_scale(RunningTask& task);

  WorkerParts& worker_;
  Stream& stream_;
  ThreadWaits waits_;
  RingReader<Command> commands_;
  BulkCopies copies_;
  GradientBytes prepared_;      // the most of a task so far
  StreamSignal weights_ready_;  // the upload stream's. Serial number of the last task whose weights are there
};

}  // namespace rp
