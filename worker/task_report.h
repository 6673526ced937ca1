// worker/task_report.h
// What a worker says of itself on the fault board: the task that it computes, and a wait record for each thread.
//
// Owned by the Worker; task() and idle() are its runner's. Without a board all does nothing.
#pragma once

#include <optional>

#include "hoststore/control.h"
#include "hoststore/fault_board.h"

namespace rp {

class TaskReport {
 public:
  explicit TaskReport(std::optional<FaultBoardEntry> board) : board_(board) {}

  // The runner is at this microbatch, or, with -1, before the first one.
  void task(const Command& command, int microbatch);
  void idle();
  [[nodiscard]] WaitRecord waits(WorkerThread thread) { return board_ ? board_->waits(thread) : WaitRecord(); }

 private:
  std::optional<FaultBoardEntry> board_;
};

}  // namespace rp
