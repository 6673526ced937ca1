// coordinator/rounds/dispatcher.h
// The one order of slots, for the rounds of all pipelines: numbers them, sends each to its worker as soon as that is
// not too far ahead, and knows which one is committed next (docs/design/protocol.md).
//
// Owned by the Coordinator and guarded by its mutex. The Store must outlive it.
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

  // Appends slots [first, end) of the round. REQUIRES: first < end.
  void append(const std::shared_ptr<Round>& round, std::size_t first_slot, std::size_t end_slot);

  // Sends the commands of slots, in order, up to the first whose worker has enough to do.
  void dispatch();

  // The oldest slot that is not committed.
  struct Next {
    std::shared_ptr<Round> round;
    const Slot* slot = nullptr;
    bool ends_flight = false;  // the last of those that were appended with it
  };
  // REQUIRES: num_committed() < num_dispatched().
  [[nodiscard]] Next next() const;
  // It is committed.
  void commit_next();

  // Slots of all time; their numbers are below.
  [[nodiscard]] std::uint64_t num_appended() const { return num_appended_; }
  [[nodiscard]] std::uint64_t num_dispatched() const { return num_dispatched_; }
  [[nodiscard]] std::uint64_t num_committed() const { return num_committed_; }
  // How many times slots of the pipeline were appended that are not all committed.
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
  std::vector<int> outstanding_;           // dispatched, not committed; by worker
  std::vector<std::uint64_t> next_event_;  // by worker
};

}  // namespace rp
