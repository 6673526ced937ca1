// coordinator/rounds/activation_budget.h
// How long the activation arenas become in a run, told from one of its rounds. (The sizes of blocks are known when a
// round has made them, not before.)
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "coordinator/rounds/round.h"
#include "hoststore/catalogue.h"
#include "hoststore/round_table.h"
#include "scheduler/slot_clock.h"

namespace rp {

// All microbatches of one row of a round's table. Slots are counted from the round's first one; slot num_slots + i is
// the next round's slot i.
struct RowBlocks {
  int writer = 0;       // its slot; kAtAcceptance: the coordinator
  int last_reader = 0;  // the slot whose commit frees them
  std::uint64_t bytes = 0;
  bool operator==(const RowBlocks&) const = default;

  static constexpr int kAtAcceptance = -1;
};

// What a round keeps in the arenas, and how rounds like it follow each other.
struct RoundMemory {
  std::vector<RowBlocks> blocks;
  int num_slots = 0;
  int num_microbatches = 1;
  // Whether the next round's first slot may run before this round's last one is committed. (Where it needs the weights
  // that this round's step makes, it may not.)
  bool rounds_overlap = true;
  std::vector<SlotTime> times{};  // of the slots; all alike if it is empty, or the work of one is 0: not known

  // Whether its blocks are the same, whatever it takes.
  [[nodiscard]] bool has_blocks_of(const RoundMemory& other) const {
    return blocks == other.blocks && num_slots == other.num_slots && num_microbatches == other.num_microbatches &&
           rounds_overlap == other.rounds_overlap;
  }
};
// `times`: of the pipeline's layers. REQUIRES: the round's slots are committed, its table and its origins still there.
[[nodiscard]] RoundMemory memory_of(const Round& round, const RoundTable& table, const Catalogue& catalogue,
                                    bool rounds_overlap, const std::vector<LayerTiming>& times);

// Bytes by arena: those of the workers, then the coordinator's.
class ActivationBudget {
 public:
  explicit ActivationBudget(int num_workers);

  // A round of this kind, whose first slot was worker `first_worker`'s, is done. The budget is what the rounds so far
  // needed by this reckoning, and what rounds like the last one of each kind will need, whichever worker they begin
  // with: the most that is alive at once while they follow each other, kRoundsInFlight accepted, each worker at one
  // slot.
  void learn(PlanKind kind, RoundMemory round, int first_worker);

  // For pipelines side by side.
  void add(const ActivationBudget& other);

  // The length of the arenas, which grow by whole pieces.
  [[nodiscard]] std::uint64_t bytes() const;
  [[nodiscard]] std::vector<std::uint64_t> arenas() const;

 private:
  struct Kind {
    RoundMemory round;
    int num_rounds = 0;                   // with these blocks
    std::vector<std::uint64_t> expected;  // by arena
  };

  std::vector<std::uint64_t> needed_;  // by arena
  std::array<Kind, kNumPlanKinds> kinds_;
};

}  // namespace rp
