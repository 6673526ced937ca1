// worker/worker.h
// One worker: takes commands, uploads weights, fetches inputs, computes, downloads results. It has no state that
// outlives it.
//
// Threads, each with a part of a task's life: the *feeder* uploads the weights of the next task; the *fetcher* uploads
// inputs, one microbatch ahead; the *runner* computes and enqueues outputs on the download stream; the *finisher* waits
// until gradient blocks may be written. serve()'s own thread watches the epoch. Every wait is for earlier slots or for
// what the coordinator does with them (docs/design/protocol.md).
//
// The Store, Device and StageExecutor must outlive it.
#pragma once

#include <array>
#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "device/device.h"
#include "hoststore/store.h"
#include "hoststore/task_rows.h"
#include "worker/bulk_copies.h"
#include "worker/consistency_check.h"
#include "worker/input_buffers.h"
#include "worker/local_queue.h"
#include "worker/output_writer.h"
#include "worker/running_task.h"
#include "worker/stage_executor.h"
#include "worker/task_report.h"
#include "worker/worker_trace.h"

namespace rp {

class Worker {
 public:
  // Says on `board`, its entry of the fault board, what it is doing and what its threads wait for; and in `trace`, if there
  // is one, what they did.
  Worker(Store& store, int number, Device& device, StageExecutor& executor, std::optional<FaultBoardEntry> board = {},
         TraceJournal* trace = nullptr);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Serves until the coordinator ends the run. Throws rp::Error for what is not a layer's or loss's fault, as memory
  // that is missing.
  void serve();

 private:
  void feed();
  void fetch();
  void run();
  void finish();

  // Feeder. A false result means: the worker stops.
  [[nodiscard]] bool feed_task(RunningTask& task);
  [[nodiscard]] bool upload_weights(RunningTask& task);
  [[nodiscard]] bool find_loss_scale(RunningTask& task);
  // Fetcher: the block of `row`, for microbatch n of all.
  [[nodiscard]] bool fetch_block(const Command& command, BlockRow row, int microbatch, std::uint64_t n);
  // Runner.
  void run_task(RunningTask& task);
  [[nodiscard]] bool take_gradient_buffer(RunningTask& task);
  [[nodiscard]] bool run_microbatches(RunningTask& task);
  // Then says that the microbatch computes. The task starts behind its first wait; later ones are in the completion.
  template <typename WaitOnce>
  [[nodiscard]] bool wait_inputs(RunningTask& task, int microbatch, WaitOnce wait_once);
  void publish_heartbeat();
  void fail_task(RunningTask& task, std::int64_t layer, int microbatch, const std::string& message);
  // Finisher.
  [[nodiscard]] bool enqueue_gradients(RunningTask& task);
  static void complete(void* task);

  // Runs a thread's function; an exception ends the worker and is rethrown by serve().
  void guard(const char* thread_name, void (Worker::*function)());
  // The worker cannot go on: it stops, and serve() throws `error`. The first call counts.
  void fail(std::exception_ptr error);
  void stop_all();
  // Waits by wait_once(limits), again and again while any worker of the run computes or once the run has failed and is
  // to be ended by others. False: this worker stops. Throws `what` and the task if all stands still for too long: for
  // what other processes do after the store's wait_timeout_ns, for what this worker's own threads do later, so that the
  // thread that knows what is missing speaks first. The caller's wait record says so meanwhile.
  template <typename WaitOnce>
  [[nodiscard]] bool wait(WorkerThread thread, const Command& command, const Wait& what, WaitOnce wait_once);
  [[noreturn]] void wait_failed(const Wait& what, const Command& command);

  Store& store_;
  const int number_;
  Device& device_;
  StageExecutor& executor_;
  WorkerTrace trace_;
  TaskReport report_;
  ConsistencyCheck check_;
  RingReader<Command> commands_;            // feeder's
  RingWriter<Completion> completions_;      // download stream's
  InputBuffers inputs_;                     // filled by the fetcher, read by the runner
  BulkCopies weight_copies_;                // feeder's
  BulkCopies gradient_copies_;              // finisher's
  OutputWriter outputs_;                    // runner's

  std::array<RunningTask, 4> tasks_;
  std::array<StageBuffer, 2> stage_buffers_;
  std::array<GradientBuffer, 2> gradient_buffers_;
  ScratchMemory accumulators_;  // runner's: fp32 gradients of the task that computes
  LocalQueue<RunningTask*> free_tasks_;
  LocalQueue<StageBuffer*> free_stage_buffers_;
  LocalQueue<GradientBuffer*> free_gradient_buffers_;
  LocalQueue<RunningTask*> to_fetch_;
  LocalQueue<RunningTask*> to_run_;
  LocalQueue<RunningTask*> to_finish_;

  SequenceWord weights_ready_{};  // writer: the upload stream. Serial number of the last task whose weights are there
  std::atomic<bool> stop_{false};
  bool halted_ = false;  // runner's: a task failed, later ones are dropped
  std::uint64_t next_microbatch_ = 0;  // runner's: of all that it computes

  Mutex mutex_;
  std::exception_ptr error_ RP_GUARDED_BY(mutex_);
};

}  // namespace rp
