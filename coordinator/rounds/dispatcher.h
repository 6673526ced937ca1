// coordinator/rounds/dispatcher.h
// Keeps one order of slots for the rounds of all pipelines: numbers the slots, sends each to its
// worker as soon as the worker has few enough tasks, and determines which slot is committed next
// (docs/design/protocol.md). At the beginning of an epoch, it goes back to the commit point (docs/design/replay.md).
//
// Owned by the RoundFlow and guarded by the Coordinator's mutex. The Store must outlive it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "common/run_order.h"
#include "coordinator/rounds/round.h"
#include "hoststore/store.h"

namespace rp {

class Dispatcher {
 public:
  // `trains_in_place`: evaluations do not change which workers the tasks of training rounds go to.
  // With Reduce::kNccl, because another node may have evaluated another number of rounds.
  explicit Dispatcher(Store& store, bool trains_in_place = false);

  // Appends slots [first_slot, end_slot) of the round. REQUIRES: first_slot < end_slot.
  void append(const std::shared_ptr<Round>& round, std::size_t first_slot, std::size_t end_slot);

  // Sends the commands of slots, in order, up to the first slot whose worker has enough tasks. Sends nothing while the
  // epoch changes.
  void dispatch();

  // Sends neither this slot nor a later one from now on, not even again. Does nothing if it is committed.
  void hold_from(SlotNumber slot);
  // Returns whether the slot of hold_from() is appended, and everything before it is committed.
  [[nodiscard]] bool is_held() const {
    return held_from_ == SlotNumber(num_committed_) && num_committed_ < num_appended_;
  }

  // Ends the present epoch: nothing is sent until begin_epoch().
  void end_epoch() { members_.clear(); }
  // Begins an epoch: the slots that are not committed will be sent again, to these workers in turn. REQUIRES: no thread
  // of a worker reads its commands.
  void begin_epoch(Epoch epoch, std::vector<int> members);
  [[nodiscard]] Epoch epoch() const { return epoch_; }
  // The workers that take part in the epoch. Empty while the epoch changes.
  [[nodiscard]] const std::vector<int>& members() const { return members_; }

  // The oldest slot that is not committed.
  struct Next {
    std::shared_ptr<Round> round;
    Slot* slot = nullptr;
    bool ends_flight = false;  // the last of the slots that were appended together
  };
  // REQUIRES: num_committed() < num_dispatched(), or is_held().
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
    std::uint64_t offset = 0;  // of its first slot's worker: the number of slots before it that count
  };

  void send(Round& round, Slot& slot, int worker);
  [[nodiscard]] int worker_of(const Flight& flight, std::size_t slot) const {
    return members_[worker_of_slot(flight.offset + (slot - flight.first_slot), static_cast<int>(members_.size()))];
  }

  Store& store_;
  Epoch epoch_{};
  std::vector<int> members_;
  std::vector<RingWriter<Command>> commands_;
  std::deque<Flight> flights_;  // oldest first
  const bool trains_in_place_;
  std::uint64_t num_trained_ = 0;  // slots of training rounds that were appended
  std::uint64_t num_appended_ = 0;
  std::uint64_t num_dispatched_ = 0;
  std::uint64_t num_committed_ = 0;
  std::optional<SlotNumber> held_from_;
  std::vector<int> outstanding_;         // slots that are dispatched and not committed, by worker
  std::vector<EventNumber> next_event_;  // by worker
};

}  // namespace rp
