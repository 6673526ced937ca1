// coordinator/coordinator_trace.h
// Records the coordinator's work in the run's trace: rounds that it accepts, slots that it commits,
// updates, waits.
//
// Owned by the Coordinator. Without a journal, all methods do nothing. `since`: the value of now()
// when the work began; it ends at the time of the call.
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
  // The journal and the catalogue must outlive it.
  CoordinatorTrace(TraceJournal* journal, const Catalogue& catalogue);

  [[nodiscard]] std::int64_t now() const { return caller_.now(); }
  // Returns the track for the waits of a thread; nullptr without a journal. REQUIRES: `thread` is
  // not kUpdates.
  [[nodiscard]] TraceTrack* waits(CoordinatorThread thread);
  [[nodiscard]] UpdateTrace& updates(int pipeline) { return updates_[pipeline]; }

  // For the caller's thread.
  void accept_round(const Round& round, std::int64_t since);
  void copy_inputs(const Round& round, std::uint64_t bytes, std::int64_t since);
  // For the commit thread.
  void commit(SlotInEpoch slot, int worker, std::int64_t since);

 private:
  TraceTrack caller_;
  TraceTrack commit_;
  std::deque<UpdateTrace> updates_;  // by pipeline
};

}  // namespace rp
