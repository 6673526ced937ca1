// coordinator/coordinator_trace.h
// What the coordinator puts into the run's trace: rounds that it accepts, slots that it commits, updates, waits.
//
// Owned by the Coordinator. Without a journal all does nothing. `since`: what now() said before it began; it ends now.
#pragma once

#include <cstdint>
#include <deque>

#include "coordinator/rounds/round.h"
#include "coordinator/updates/update_trace.h"
#include "hoststore/records/fault_board.h"
#include "hoststore/records/trace_journal.h"

namespace rp {

class CoordinatorTrace {
 public:
  // Both must outlive it.
  CoordinatorTrace(TraceJournal* journal, const Catalogue& catalogue);

  [[nodiscard]] std::int64_t now() const { return caller_.now(); }
  // nullptr without a journal. `thread`: not kUpdates.
  [[nodiscard]] TraceTrack* waits(CoordinatorThread thread);
  [[nodiscard]] UpdateTrace& updates(int pipeline) { return updates_[static_cast<std::size_t>(pipeline)]; }

  // The caller's thread.
  void accept_round(const Round& round, std::int64_t since);
  void copy_inputs(const Round& round, std::uint64_t bytes, std::int64_t since);
  // The commit thread. `slot` with its epoch.
  void commit(std::uint64_t slot, int worker, std::int64_t since);

 private:
  TraceTrack caller_;
  TraceTrack commit_;
  std::deque<UpdateTrace> updates_;  // by pipeline
};

}  // namespace rp
