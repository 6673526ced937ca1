// worker/observers/task_report.h
// What a worker says of itself on the fault board: the task that it computes, and a wait record for each thread.
//
// Owned by the Worker, as the trace that the waits go to once they are over; task() and idle() are its stage runner's.
// Without a board all does nothing.
#pragma once

#include <optional>

#include "hoststore/control.h"
#include "hoststore/records/fault_board.h"
#include "worker/observers/worker_trace.h"

namespace rp {

class TaskReport {
 public:
  TaskReport(std::optional<FaultBoardEntry> board, WorkerTrace& trace) : board_(board), trace_(trace) {}

  // The stage runner is at this microbatch, or, with -1, before the first one.
  void task(const Command& command, int microbatch);
  void idle();
  [[nodiscard]] WaitRecord waits(WorkerThread thread) {
    return board_ ? board_->waits(thread).traced_by(trace_.waits(thread)) : WaitRecord();
  }

 private:
  std::optional<FaultBoardEntry> board_;
  WorkerTrace& trace_;
};

}  // namespace rp
