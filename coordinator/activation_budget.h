// coordinator/activation_budget.h
// How long the activation arenas become in a run, told from one of its rounds. (The sizes of blocks are known when a round
// has made them, not before.)
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/round.h"
#include "hoststore/catalogue.h"
#include "hoststore/round_table.h"

namespace rp {

// Rounds of a pipeline that may have a slot which is not committed.
inline constexpr int kRoundsInFlight = 2;

// All microbatches of one row of a round's table. Slots are counted from the round's first one; slot num_slots + i is the
// next round's slot i.
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
  // Whether the next round's first slot may run before this round's last one is committed. (Where it needs the weights that
  // this round's step makes, it may not.)
  bool next_runs_beside = true;
  bool operator==(const RoundMemory&) const = default;
};
// REQUIRES: the round's slots are committed, its table and its origins still there.
[[nodiscard]] RoundMemory memory_of(const Round& round, const RoundTable& table, const Catalogue& catalogue, bool next_runs_beside);

// Bytes by arena: those of the workers, then the coordinator's.
class ActivationBudget {
 public:
  explicit ActivationBudget(int num_workers) : arenas_(static_cast<std::size_t>(num_workers) + 1) {}

  // The most that is alive at once while rounds like this one follow each other: kRoundsInFlight are accepted, each worker
  // is at one slot, what comes before these slots is committed. Takes the place of what an arena needed so far if it is more.
  void learn(const RoundMemory& round);

  // For pipelines side by side.
  void add(const ActivationBudget& other);

  // The length of the arenas, which grow by whole pieces.
  [[nodiscard]] std::uint64_t bytes() const;
  [[nodiscard]] const std::vector<std::uint64_t>& arenas() const { return arenas_; }

 private:
  std::vector<std::uint64_t> arenas_;
};

}  // namespace rp
