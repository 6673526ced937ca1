// coordinator/run_report.h
// Publishes the coordinator's progress on the fault board, and provides a wait record for each of
// its threads.
//
// Owned by the RoundFlow and guarded by the Coordinator's mutex, except the wait records: each
// belongs to its own thread. Without a board, all methods do nothing.
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

  // Notes the newest round; the next slots() publishes it.
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

  // Returns the wait record of a thread. `number`: for kUpdates, the pipeline that the thread
  // updates.
  [[nodiscard]] static WaitRecord waits(std::optional<FaultBoardEntry> board, CoordinatorThread thread,
                                        int number = 0) {
    return board ? board->waits(thread, number) : WaitRecord();
  }

 private:
  std::optional<FaultBoardEntry> board_;
  BoardProgress progress_;
};

}  // namespace rp
