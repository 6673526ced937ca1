// worker/observers/worker_observer.h
// Is notified of what happens in a worker: one method for each event of the life of a task.
//
// Each method is named after what has happened, and is called by the thread that did it. Here the
// methods do nothing; an observer overrides those that it needs. What they throw ends the worker.
// Waits are not events: WorkerObservers::waits() returns the record to which a thread writes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/device.h"
#include "hoststore/round_table.h"
#include "hoststore/task_rows.h"
#include "worker/executor/stage_executor.h"

namespace rp {

// A block of one microbatch that a task reads.
struct TaskInput {
  BlockRow row;                       // under which the task reads it
  BlockRow made_as;                   // its row in the table of the round that made it
  const RoundTable* table = nullptr;  // of the round that made it
  int microbatch = 0;

  [[nodiscard]] const BlockPlace& place() const { return table->place(made_as.kind, made_as.index, microbatch); }
};

class WorkerObserver {
 public:
  WorkerObserver() = default;
  virtual ~WorkerObserver() = default;
  WorkerObserver(const WorkerObserver&) = delete;
  WorkerObserver& operator=(const WorkerObserver&) = delete;

  // A thread is about to enqueue a copy, or a piece of one, on this stream. The thread's next event
  // describes the copy. No other thread names the same stream.
  virtual void copy_begun(StreamKind stream) { (void)stream; }

  // Weight uploader.

  // A command was taken from the ring.
  virtual void command_taken(const Command& command) { (void)command; }
  // The weights of a use have this version in the store, and are about to be uploaded.
  virtual void weights_published(const Command& command, UseId use, Version version) {
    (void)command, (void)use, (void)version;
  }
  // The upload of some of their bytes is enqueued.
  virtual void weights_piece_enqueued(const Command& command, UseId use, Version version, std::uint64_t bytes) {
    (void)command, (void)use, (void)version, (void)bytes;
  }
  // The upload of all of them, to `memory`, is enqueued.
  virtual void weights_enqueued(const Command& command, UseId use, Version version, const std::byte* memory) {
    (void)command, (void)use, (void)version, (void)memory;
  }

  // Input uploader.

  // An input is in the store. If it is not empty, it is about to be uploaded.
  virtual void input_published(const Command& command, const TaskInput& input) { (void)command, (void)input; }
  // Its upload is enqueued. `memory` is the device memory of the block's data.
  virtual void input_enqueued(const Command& command, const TaskInput& input, std::span<const std::byte> memory) {
    (void)command, (void)input, (void)memory;
  }

  // Stage runner.

  // It has no task.
  virtual void runner_idle() {}
  // It took a task and waits for what the task needs.
  virtual void task_taken(const Command& command) { (void)command; }
  // The inputs of a microbatch that it will compute or recompute are there.
  virtual void inputs_arrived(const Command& command, int microbatch) { (void)command, (void)microbatch; }
  // The computation of a task, and within it those of its microbatches, have begun or ended. Called
  // through task() and microbatch() below.
  virtual void task_begun(const Command& command) { (void)command; }
  virtual void task_ended() {}
  virtual void microbatch_begun(int microbatch, bool is_recompute) { (void)microbatch, (void)is_recompute; }
  virtual void microbatch_ended() {}
  // The download of an output to `block` in the store is enqueued.
  virtual void output_enqueued(const Command& command, BlockRow row, int microbatch, std::span<const std::byte> block) {
    (void)command, (void)row, (void)microbatch, (void)block;
  }

  // Gradient downloader.

  // The download of some bytes of a use's gradient is enqueued.
  virtual void gradient_piece_enqueued(const Command& command, UseId use, std::uint64_t bytes) {
    (void)command, (void)use, (void)bytes;
  }
  // The download of all of them is enqueued.
  virtual void gradient_enqueued(const Command& command, UseId use) { (void)command, (void)use; }
  // The gradient download stream has done everything for a task that computed these microbatches, of
  // which there is at least one.
  virtual void task_done(const Command& command, std::span<const MicrobatchTime> times) { (void)command, (void)times; }

  // Lasts as long as a computation and notifies the observer of its end, also if an exception ends
  // it.
  class [[nodiscard]] Computation {
   public:
    using End = void (WorkerObserver::*)();
    Computation(WorkerObserver& observer, End end) : observer_(observer), end_(end) {}
    ~Computation() { (observer_.*end_)(); }
    Computation(const Computation&) = delete;
    Computation& operator=(const Computation&) = delete;

   private:
    WorkerObserver& observer_;
    const End end_;
  };
  Computation task(const Command& command) {
    task_begun(command);
    return {*this, &WorkerObserver::task_ended};
  }
  Computation microbatch(int number, bool is_recompute) {
    microbatch_begun(number, is_recompute);
    return {*this, &WorkerObserver::microbatch_ended};
  }
};

}  // namespace rp
