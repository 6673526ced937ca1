// coordinator/rounds/activation_budget.h
// Computes from finished rounds how long the activation arenas become. (The sizes of blocks are not
// known before a round has made them.)
#pragma once

#include <cstdint>
#include <vector>

#include "common/indexed.h"
#include "coordinator/rounds/round.h"
#include "hoststore/catalogue.h"
#include "hoststore/round_table.h"
#include "scheduler/slot_clock.h"

namespace rp {

// The blocks of all microbatches of one row of a round's table. Slots are counted from the round's
// first slot; slot num_slots + i is slot i of the next round.
struct RowBlocks {
  int writer = 0;       // the slot that writes them; kAtAcceptance: the coordinator
  int last_reader = 0;  // the slot whose commit frees them
  std::uint64_t bytes = 0;
  bool operator==(const RowBlocks&) const = default;

  static constexpr int kAtAcceptance = -1;
};

// Describes the blocks that a round keeps in the arenas, and how rounds of this kind follow each
// other.
struct RoundMemory {
  std::vector<RowBlocks> blocks;
  int num_slots = 0;
  int num_microbatches = 1;
  // True if the next round's first slot may run before this round's last slot is committed. (It may
  // not if it needs the weights that this round's step makes.)
  bool rounds_overlap = true;
  std::vector<SlotTime> times{};  // by slot; empty or with a work of 0: not known, so all count as equally long

  // Returns true if both rounds have the same blocks, whatever their times are.
  [[nodiscard]] bool has_blocks_of(const RoundMemory& other) const {
    return blocks == other.blocks && num_slots == other.num_slots && num_microbatches == other.num_microbatches &&
           rounds_overlap == other.rounds_overlap;
  }
};
// Returns the memory of a round. `times`: of the pipeline's layers. REQUIRES: the round's slots are
// committed; its table and its origins still exist.
[[nodiscard]] RoundMemory memory_of(const Round& round, const RoundTable& table, const Catalogue& catalogue,
                                    bool rounds_overlap, const std::vector<LayerTiming>& times);

// Keeps a number of bytes for each arena: first for the workers', then for the coordinator's.
class ActivationBudget {
 public:
  explicit ActivationBudget(int num_workers);

  // Adds a finished round of this kind, whose first slot ran on `first_worker`. The budget is the
  // larger one of two numbers: what the rounds so far needed by this calculation, and what rounds
  // like the newest one of each kind will need, whichever worker they begin with. Needed is the
  // maximum that is alive at once while such rounds follow each other, with kRoundsInFlight rounds
  // accepted and one slot running on each worker.
  void learn(PlanKind kind, RoundMemory round, int first_worker);

  // Adds the budget of another pipeline that runs in the same session.
  void add(const ActivationBudget& other);

  // Returns the total length of the arenas, which grow by whole pieces; and the bytes that each one
  // needs.
  [[nodiscard]] std::uint64_t bytes() const;
  [[nodiscard]] std::vector<std::uint64_t> arenas() const;

 private:
  struct Kind {
    RoundMemory round;
    int num_rounds = 0;                   // rounds in a row that had these blocks
    std::vector<std::uint64_t> expected;  // by arena
  };

  std::vector<std::uint64_t> needed_;  // by arena
  IndexedArray<PlanKind, Kind, kNumPlanKinds> kinds_;
};

}  // namespace rp
