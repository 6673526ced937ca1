// worker/stage_runner.h
// Computes a worker's tasks, microbatch by microbatch, and enqueues their outputs on the output
// download stream.
//
// Owned by the EpochService. run() is executed by the stage runner's thread, which is the only one that
// calls the StageExecutor, except for StageExecutor::collect(). It waits for other threads of this
// worker only. It writes to the store: the worker's heartbeat, its failure record and, through
// its OutputWriter, the outputs.
#pragma once

#include <cstdint>
#include <string>

#include "worker/executor/stage_executor.h"
#include "worker/input_buffers.h"
#include "worker/output_writer.h"
#include "worker/weight_uploader.h"
#include "worker/worker_parts.h"

namespace rp {

class StageRunner {
 public:
  // All arguments must outlive it.
  StageRunner(WorkerParts& worker, StageExecutor& executor, const WeightUploader& weight_uploader,
              InputBuffers& inputs);

  // Computes tasks until the worker stops. After a task that failed, drops all later ones.
  void run();

  // Wakes the stage runner if it waits for free space for outputs.
  void wake() const { outputs_.wake(); }

 private:
  void run_task(RunningTask& task);
  // These return false if the worker stops.
  [[nodiscard]] bool take_gradient_buffer(RunningTask& task);
  [[nodiscard]] bool run_microbatches(RunningTask& task);
  [[nodiscard]] bool recompute(RunningTask& task, int microbatch);
  [[nodiscard]] bool run_microbatch(RunningTask& task, int microbatch);
  // Waits for the inputs of a microbatch, then reports that the microbatch is being computed.
  template <typename WaitOnce>
  [[nodiscard]] bool wait_inputs(RunningTask& task, int microbatch, WaitOnce wait_once);
  void publish_heartbeat();
  void fail_task(RunningTask& task, std::int64_t layer, int microbatch, const std::string& message, ExitCode code);

  WorkerParts& worker_;
  StageExecutor& executor_;
  Stream& compute_;
  const WeightUploader& weight_uploader_;
  InputBuffers& inputs_;
  OutputWriter outputs_;
  ThreadWaits waits_;
  ScratchMemory accumulators_;         // fp32 gradients of the task that is being computed
  bool halted_ = false;                // true once a task has failed; later ones are dropped
  std::uint64_t next_microbatch_ = 0;  // counted over all tasks
};

}  // namespace rp
