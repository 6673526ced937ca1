// worker/observers/task_report.h
// Publishes the state of a worker on the fault board: the task that it computes, and a wait record
// for each of its threads.
//
// Owned by the WorkerObservers of a worker with a fault board.
#pragma once

#include "hoststore/control.h"
#include "hoststore/records/fault_board.h"
#include "worker/observers/worker_observer.h"

namespace rp {

class TaskReport final : public WorkerObserver {
 public:
  explicit TaskReport(FaultBoardEntry board) : board_(board) {}

  void runner_idle() override;
  void task_taken(const Command& command) override { publish(command, -1); }
  void inputs_arrived(const Command& command, int microbatch) override { publish(command, microbatch); }

  [[nodiscard]] WaitRecord waits(WorkerThread thread) { return board_.waits(thread); }

 private:
  // `microbatch`: the one that is computed, or -1 before the first one.
  void publish(const Command& command, int microbatch);

  FaultBoardEntry board_;
};

}  // namespace rp
