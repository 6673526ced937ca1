// coordinator/rounds/dispatcher.h
// Keeps one order of slots for the rounds of all pipelines: numbers the slots, sends each to its
// worker as soon as the worker has few enough tasks, and determines which slot is committed next
// (docs/design/protocol.md).
//
// Owned by the RoundFlow and guarded by the Coordinator's mutex. The Store must outlive it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "coordinator/rounds/round.h"
#include "hoststore/store.h"

namespace rp {

class Dispatcher {
 public:
  explicit Dispatcher(Store& store);

  // Appends slots [first_slot, end_slot) of the round. REQUIRES: first_slot < end_slot.
  void append(const std::shared_ptr<Round>& round, std::size_t first_slot, std::size_t end_slot);

  // Sends the commands of slots, in order, up to the first slot whose worker has enough tasks.
  void dispatch();

  // The oldest slot that is not committed.
  struct Next {
    std::shared_ptr<Round> round;
    Slot* slot = nullptr;
    bool ends_flight = false;  // the last of the slots that were appended together
  };
  // REQUIRES: num_committed() < num_dispatched().
  [[nodiscard]] Next next() const;
  // Marks the next slot as committed.
  void commit_next();

  // The numbers of slots since the start of the run. Each also is the number of the slot that will
  // be appended, dispatched or committed next.
  [[nodiscard]] std::uint64_t num_appended() const { return num_appended_; }
  [[nodiscard]] std::uint64_t num_dispatched() const { return num_dispatched_; }
  [[nodiscard]] std::uint64_t num_committed() const { return num_committed_; }
  // Returns how many calls of append() for this pipeline have slots that are not committed.
  [[nodiscard]] int num_flights(int pipeline) const;

 private:
  // Slots of a round that were appended together.
  struct Flight {
    std::shared_ptr<Round> round;
    std::size_t first_slot = 0;
    std::size_t end_slot = 0;
  };

  void send(Round& round, Slot& slot);

  Store& store_;
  std::vector<RingWriter<Command>> commands_;
  std::deque<Flight> flights_;  // oldest first
  std::uint64_t num_appended_ = 0;
  std::uint64_t num_dispatched_ = 0;
  std::uint64_t num_committed_ = 0;
  std::vector<int> outstanding_;         // slots that are dispatched and not committed, by worker
  std::vector<EventNumber> next_event_;  // by worker
};

}  // namespace rp
