// coordinator/run_report.h
// What the coordinator says of itself on the fault board: how far it is, and a wait record for each thread.
//
// Owned by the Coordinator and guarded by its mutex, but for the records: each is its own thread's. Without a board all
// does nothing.
#pragma once

#include <optional>

#include "common/system/clock.h"
#include "coordinator/rounds/dispatcher.h"
#include "coordinator/rounds/round.h"
#include "hoststore/records/fault_board.h"

namespace rp {

class RunReport {
 public:
  explicit RunReport(std::optional<FaultBoardEntry> board) : board_(board) {}

  // The newest round.
  void round(const Round& newest) {
    progress_.round = static_cast<std::int64_t>(newest.number);
    progress_.step = static_cast<std::int64_t>(newest.step);
  }
  void slots(const Dispatcher& dispatcher) {
    if (!board_) return;
    progress_.accepted = static_cast<std::int64_t>(dispatcher.num_appended());
    progress_.dispatched = static_cast<std::int64_t>(dispatcher.num_dispatched());
    progress_.committed = static_cast<std::int64_t>(dispatcher.num_committed());
    progress_.changed_ns = now_ns();
    board_->publish_progress(progress_);
  }

  // `number`: the pipeline whose updates it makes.
  [[nodiscard]] static WaitRecord waits(std::optional<FaultBoardEntry> board, CoordinatorThread thread,
                                        int number = 0) {
    return board ? board->waits(thread, number) : WaitRecord();
  }

 private:
  std::optional<FaultBoardEntry> board_;
  BoardProgress progress_;
};

}  // namespace rp
