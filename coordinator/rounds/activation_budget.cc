#include "coordinator/rounds/activation_budget.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>

#include "common/run_depth.h"
#include "hoststore/arena_view.h"
#include "hoststore/range_allocator.h"
#include "hoststore/task_rows.h"

namespace rp {

namespace {

std::uint64_t bytes_of(const RoundTable& table, const BlockRow& row) {
  std::uint64_t bytes = 0;
  for (int m = 0; m < (is_once_a_task(row.kind) ? 1 : table.num_microbatches()); ++m) {
    const std::uint64_t block = table.place(row.kind, row.index, m).bytes;
    if (block > 0) bytes += RangeAllocator::rounded_bytes(block);
  }
  return bytes;
}

SlotTime time_of(const Slot& slot, const std::vector<LayerTiming>& layers) {
  SlotTime time;
  for (int layer = slot.layers.first; layer < slot.layers.end; ++layer) {
    const LayerTiming& of_layer = layers[layer];
    if (slot.phase == Phase::kBackward) time.lead += of_layer.recompute;
    if (slot.phase != Phase::kBackward) time.work += of_layer.forward;
    if (slot.phase != Phase::kForward) time.work += of_layer.backward;
  }
  return time;
}

}  // namespace

RoundMemory memory_of(const Round& round, const RoundTable& table, const Catalogue& catalogue, bool rounds_overlap,
                      const std::vector<LayerTiming>& times) {
  const int num_slots = static_cast<int>(round.slots.size());
  std::map<BlockRow, RowBlocks> rows;
  std::map<BlockRow, int> imported;  // the last reader of each imported row
  for (int slot = 0; slot < num_slots; ++slot) {
    const Command command = command_of(round, round.slots[slot]);
    for (const BlockRow& row : input_rows(command, catalogue)) {
      if (round.origins.contains(row)) {
        imported[row] = slot;
      } else {
        rows.try_emplace(row, RowBlocks{.writer = RowBlocks::kAtAcceptance}).first->second.last_reader = slot;
      }
    }
    for (const BlockRow& row : output_rows(command, catalogue)) {
      // A block that no slot reads is the caller's. The caller reads it before the next round has
      // progressed far.
      rows.try_emplace(row, RowBlocks{.writer = slot, .last_reader = num_slots});
    }
  }
  RoundMemory memory{.blocks = {},
                     .num_slots = num_slots,
                     .num_microbatches = table.num_microbatches(),
                     .rounds_overlap = rounds_overlap};
  std::vector<RowBlocks>& blocks = memory.blocks;
  int table_is_read_until = num_slots - 1;
  for (auto& [row, block] : rows) {
    if (row.kind == BlockKind::kBuffers) {  // the next round reads them
      block.last_reader = num_slots + imported[row];
      table_is_read_until = std::max(table_is_read_until, block.last_reader);
    }
    block.bytes = bytes_of(table, row);
    if (block.bytes > 0) blocks.push_back(block);
  }
  blocks.push_back({.writer = RowBlocks::kAtAcceptance,
                    .last_reader = table_is_read_until,
                    .bytes = RangeAllocator::rounded_bytes(round.table_bytes)});
  for (const Slot& slot : round.slots) memory.times.push_back(time_of(slot, times));
  return memory;
}

namespace {

// Computes when the microbatches of consecutive slots end, in rounds that are all alike.
class SlotEnds {
 public:
  SlotEnds(const RoundMemory& round, int num_rounds, int num_workers) : num_microbatches_(round.num_microbatches) {
    const bool knows_times =
        static_cast<int>(round.times.size()) == round.num_slots &&
        std::all_of(round.times.begin(), round.times.end(), [](const SlotTime& time) { return time.work > 0; });
    SlotClock clock(num_workers, round.num_microbatches, 0);
    for (int slot = 0; slot < num_rounds * round.num_slots; ++slot) {
      const int of_round = slot % round.num_slots;
      double ready = 0;
      if (of_round == 0) {
        clock.begin_round();
        const int waits_for = round.rounds_overlap ? slot - (kRoundsInFlight - 1) * round.num_slots - 1 : slot - 1;
        if (waits_for >= 0) ready = commits_[waits_for];
      }
      const double end = clock.run(knows_times ? round.times[of_round] : SlotTime{.work = 1}, ready);
      ends_.insert(ends_.end(), clock.ends().begin(), clock.ends().end());
      commits_.push_back(commits_.empty() ? end : std::max(end, commits_.back()));
    }
  }

  // Returns how many microbatches of `slot` have ended when slot `point` is about to be committed.
  [[nodiscard]] std::uint64_t num_ended(int slot, int point) const {
    const auto begin = ends_.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(slot) * num_microbatches_);
    const auto end = begin + static_cast<std::ptrdiff_t>(num_microbatches_);
    return static_cast<std::uint64_t>(std::upper_bound(begin, end, commits_[point]) - begin);
  }

 private:
  std::size_t num_microbatches_;
  std::vector<double> ends_;     // by slot and microbatch
  std::vector<double> commits_;  // by slot
};

// Returns the maximum number of bytes that are alive at once in each arena, at the commits of
// `num_rounds` rounds. The first of these rounds begins with `first_worker`.
std::vector<std::uint64_t> peaks(const RoundMemory& memory, int first_worker, int num_rounds, int num_workers) {
  // The blocks of a round live into the next round at most. One more round is simulated, so that
  // the workers have reached their usual state.
  constexpr int kBefore = 2;
  const int num_slots = memory.num_slots;
  const SlotEnds ends(memory, kBefore + num_rounds + kRoundsInFlight, num_workers);
  const int shift = first_worker - kBefore * num_slots % num_workers + num_workers;
  const auto num_microbatches = static_cast<std::uint64_t>(memory.num_microbatches);
  std::vector<std::uint64_t> most(static_cast<std::size_t>(num_workers) + 1), alive(most.size());
  for (int point = kBefore * num_slots; point < (kBefore + num_rounds) * num_slots; ++point) {
    std::fill(alive.begin(), alive.end(), 0);
    const int present = point / num_slots;
    for (int round = present - 1; round < present + kRoundsInFlight; ++round) {
      const int first = round * num_slots;
      for (const RowBlocks& block : memory.blocks) {
        if (first + block.last_reader < point) continue;
        if (block.writer == RowBlocks::kAtAcceptance) {
          alive.back() += block.bytes;
        } else {
          const int writer = first + block.writer;
          alive[(writer + shift) % num_workers] += block.bytes * ends.num_ended(writer, point) / num_microbatches;
        }
      }
    }
    for (std::size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], alive[i]);
  }
  return most;
}

void take_larger(std::vector<std::uint64_t>& to, const std::vector<std::uint64_t>& from) {
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = std::max(to[i], from[i]);
}

}  // namespace

ActivationBudget::ActivationBudget(int num_workers) : needed_(static_cast<std::size_t>(num_workers) + 1) {}

void ActivationBudget::learn(PlanKind kind, RoundMemory round, int first_worker) {
  const int num_workers = static_cast<int>(needed_.size()) - 1;
  Kind& last = kinds_[kind];
  last.num_rounds = round.has_blocks_of(last.round) ? last.num_rounds + 1 : 1;
  // The number of different workers with which rounds begin, in turn. Computed by lcm, not as
  // num_workers / gcd: GCC 12 computes 0 for 1 / std::gcd(1, 5) with -O2 -fsanitize=thread.
  const int num_beginnings = std::lcm(num_workers, round.num_slots) / round.num_slots;
  // Each beginning counts once; later rounds need the same.
  if (last.num_rounds <= num_beginnings) take_larger(needed_, peaks(round, first_worker, 1, num_workers));
  // Repeated ever more rarely, because the times become smoother.
  if (std::has_single_bit(static_cast<unsigned>(last.num_rounds))) {
    last.expected = peaks(round, first_worker, num_beginnings, num_workers);
  }
  last.round = std::move(round);
}

std::vector<std::uint64_t> ActivationBudget::arenas() const {
  std::vector<std::uint64_t> arenas = needed_;
  for (const Kind& kind : kinds_) take_larger(arenas, kind.expected);
  return arenas;
}

void ActivationBudget::add(const ActivationBudget& other) {
  const std::vector<std::uint64_t> others = other.arenas();
  for (std::size_t i = 0; i < others.size(); ++i) needed_[i] += others[i];
}

std::uint64_t ActivationBudget::bytes() const {
  std::uint64_t sum = 0;
  for (const std::uint64_t arena : arenas()) sum += align_up(arena, ArenaView::kPieceBytes);
  return sum;
}

}  // namespace rp
