// worker/weight_uploader.h
// Takes commands and uploads the weights of the next task while the current one computes. A task's
// life begins here.
//
// Owned by the EpochService. run() is executed by the weight uploader's thread; wait_weights() is called
// by the stage runner. It waits for `published` of each weight group and for the loss scale, and
// writes the head of the command ring. The upload stream of the parameters must be drained before
// it is destroyed.
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

  // Uploads weights until the worker stops. Each task is passed to the input uploader and to the
  // stage runner before its weights are uploaded.
  void run();

  // Blocks until the weights of the worker's task number `serial` can be used, and all other fields
  // that the weight uploader fills in are set.
  [[nodiscard]] WaitResult wait_weights(std::uint64_t serial, const WaitLimits& limits) const {
    return weights_ready_.wait_at_least(serial, limits);
  }
  // Makes what is enqueued on `stream` from now on run after the upload of these weights. REQUIRES:
  // wait_weights() returned kReached.
  void compute_after_weights(std::uint64_t serial, Stream& stream) const {
    weights_ready_.enqueue_wait(serial, stream);
  }

  // Wakes the threads that wait for a command, for a piece of an upload, or for weights.
  void wake() const;

 private:
  // These return false if the worker stops.
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
  GradientBytes prepared_;      // the maximum over the tasks so far
  StreamSignal weights_ready_;  // on the parameter upload stream: serial number of the last task with uploaded weights
};

}  // namespace rp
