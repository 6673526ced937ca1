// worker/observers/task_report.h
// Publishes the state of a worker on the fault board: the task that it computes, and a wait record
// for each of its threads.
//
// Owned by the Worker, like the trace that records the waits once they are over. task() and idle()
// are called by the stage runner. Without a board the methods do nothing.
#pragma once

#include <optional>

#include "hoststore/control.h"
#include "hoststore/records/fault_board.h"
#include "worker/observers/worker_trace.h"

namespace rp {

class TaskReport {
 public:
  TaskReport(std::optional<FaultBoardEntry> board, WorkerTrace& trace) : board_(board), trace_(trace) {}

  // The stage runner computes this microbatch, or is before the first one if `microbatch` is -1.
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
