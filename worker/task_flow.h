// worker/task_flow.h
// Passes the tasks of a worker from thread to thread: owns the memory of tasks and device buffers,
// the queues between the threads, and the flag that stops them all.
//
//   tasks             free -> weight uploader -> to_fetch -> input uploader
//                                    -> to_run -> stage runner -> to_finish -> gradient downloader
//                                    -> gradient download stream -> free
//   stage buffers     free -> weight uploader -> stage runner -> free
//   gradient buffers  free -> stage runner -> gradient downloader -> gradient download stream -> free
//
// The input uploader reads only the task's command. It has read it before the stage runner passes
// the task on, because the stage runner needs the inputs.
//
// Owned by the EpochService. Any thread may use the queues; tasks and buffers may be accessed only by the
// thread that holds them.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/run_depth.h"
#include "hoststore/sequence_word.h"
#include "worker/local_queue.h"
#include "worker/running_task.h"

namespace rp {

class TaskFlow {
 public:
  // Uses at most kStageBuffers stage buffers. The device must outlive the flow.
  TaskFlow(Device& device, std::size_t num_stage_buffers) {
    for (RunningTask& task : tasks_) {
      task.written = device.make_event();
      free_tasks.push(&task);
    }
    for (std::size_t i = 0; i < std::min(num_stage_buffers, stage_buffers_.size()); ++i) {
      stage_buffers_[i].computed = device.make_event();
      free_stage_buffers.push(&stage_buffers_[i]);
    }
    for (GradientBuffer& buffer : gradient_buffers_) {
      buffer.computed = device.make_event();
      free_gradient_buffers.push(&buffer);
    }
  }

  LocalQueue<RunningTask*> free_tasks;
  LocalQueue<StageBuffer*> free_stage_buffers;
  LocalQueue<GradientBuffer*> free_gradient_buffers;
  LocalQueue<RunningTask*> to_fetch;
  LocalQueue<RunningTask*> to_run;
  LocalQueue<RunningTask*> to_finish;

  // Stops the flow because the worker drops its work: closes every queue, and ends every wait with
  // limits() as soon as it is woken.
  void stop() {
    publish_stop();
    for (auto* queue : {&free_tasks, &to_fetch, &to_run, &to_finish}) queue->close();
    free_stage_buffers.close();
    free_gradient_buffers.close();
  }
  // SYNC: acquire; pairs with publish_stop().
  [[nodiscard]] bool observe_stop() const { return stop_.load(std::memory_order_acquire); }
  // The limits of a wait that ends when the flow stops.
  [[nodiscard]] WaitLimits limits(std::int64_t timeout_ns) const { return {&stop_, timeout_ns}; }

 private:
  // SYNC: release; pairs with observe_stop() and with the waits of a SequenceWord, which read the
  // flag through limits().
  void publish_stop() { stop_.store(true, std::memory_order_release); }

  std::array<RunningTask, kTasksAhead + 2> tasks_;  // those that the worker was given, and one for the next command
  std::array<StageBuffer, kStageBuffers> stage_buffers_;
  std::array<GradientBuffer, kGradientBuffers> gradient_buffers_;
  std::atomic<bool> stop_{false};
};

}  // namespace rp
