// worker/stage_runner.h
// The thread that computes a worker's tasks, microbatch by microbatch, and enqueues their outputs on the download
// stream.
//
// Owned by the Worker; run() is its thread, the only one that calls the StageExecutor, except for
// StageExecutor::collect(). Waits for other threads of this worker only. Writes to the store: the worker's heartbeat,
// its failure record, the end of its warm-up, and by its OutputWriter the outputs.
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
  // All must outlive it.
  StageRunner(WorkerParts& worker, StageExecutor& executor, const WeightUploader& weight_uploader,
              InputBuffers& inputs);

  // First of all, in the thread of run(). Returns when the device has done all of it.
  void warm_up();

  // Until the worker stops. After a task that failed it drops those that come.
  void run();

  // Wakes the thread that waits for room for outputs.
  void wake() const { outputs_.wake(); }

 private:
  void run_task(RunningTask& task);
  // A false result means: the worker stops.
  [[nodiscard]] bool take_gradient_buffer(RunningTask& task);
  [[nodiscard]] bool run_microbatches(RunningTask& task);
  [[nodiscard]] bool recompute(RunningTask& task, int microbatch);
  [[nodiscard]] bool run_microbatch(RunningTask& task, int microbatch);
  // Then says that the microbatch computes.
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
  ScratchMemory accumulators_;         // fp32 gradients of the task that computes
  bool halted_ = false;                // a task failed, later ones are dropped
  std::uint64_t next_microbatch_ = 0;  // of all that it computes
};

}  // namespace rp
