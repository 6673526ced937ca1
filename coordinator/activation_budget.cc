#include "coordinator/activation_budget.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "hoststore/arena_view.h"
#include "hoststore/block_allocator.h"
#include "hoststore/task_rows.h"

namespace rp {

namespace {

std::uint64_t bytes_of(const RoundTable& table, const BlockRow& row) {
  std::uint64_t bytes = 0;
  for (int m = 0; m < (is_once_a_task(row.kind) ? 1 : table.num_microbatches()); ++m) {
    const std::uint64_t block = table.place(row.kind, row.index, m).bytes;
    if (block > 0) bytes += BlockAllocator::taken_bytes(block);
  }
  return bytes;
}

}  // namespace

RoundMemory memory_of(const Round& round, const RoundTable& table, const Catalogue& catalogue, bool next_runs_beside) {
  const int num_slots = static_cast<int>(round.slots.size());
  std::map<BlockRow, RowBlocks> rows;
  std::map<BlockRow, int> imported;  // their last reader
  for (int slot = 0; slot < num_slots; ++slot) {
    const Command command = command_of(round, round.slots[static_cast<std::size_t>(slot)]);
    for (const BlockRow& row : input_rows(command, catalogue)) {
      if (round.origins.contains(row)) {
        imported[row] = slot;
      } else {
        rows.try_emplace(row, RowBlocks{.writer = RowBlocks::kAtAcceptance}).first->second.last_reader = slot;
      }
    }
    for (const BlockRow& row : output_rows(command, catalogue)) {
      // What no slot reads is the caller's, who reads it before the next round is far.
      rows.try_emplace(row, RowBlocks{.writer = slot, .last_reader = num_slots});
    }
  }
  RoundMemory memory{.blocks = {}, .num_slots = num_slots, .num_microbatches = table.num_microbatches(), .next_runs_beside = next_runs_beside};
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
  blocks.push_back({.writer = RowBlocks::kAtAcceptance, .last_reader = table_is_read_until,
                    .bytes = BlockAllocator::taken_bytes(round.table_bytes)});
  return memory;
}

namespace {

// The part of a block that is written when slot `point` is about to be committed, by slot `writer` of a round that begins
// with slot `first`. A slot has written one microbatch less than the slot before it, whose output it reads.
std::uint64_t written_bytes(const RoundMemory& round, const RowBlocks& block, int first, int point, int num_workers) {
  const int writer = first + block.writer;
  if (writer < point) return block.bytes;
  const bool runs = writer < point + num_workers && (first <= point || round.next_runs_beside);
  const int behind = writer - std::max(point, first);
  if (!runs || behind >= round.num_microbatches) return 0;
  const auto num_microbatches = static_cast<std::uint64_t>(round.num_microbatches);
  return block.bytes * (num_microbatches - static_cast<std::uint64_t>(behind)) / num_microbatches;
}

}  // namespace

void ActivationBudget::learn(const RoundMemory& memory) {
  const int num_workers = static_cast<int>(arenas_.size()) - 1;
  const int num_slots = memory.num_slots;
  // Rounds begin with each of these workers in turn.
  // By lcm, not num_workers / gcd: GCC 12 makes 0 of 1 / std::gcd(1, 5) with -O2 -fsanitize=thread.
  const int num_rounds = std::lcm(num_workers, num_slots) / num_slots;
  std::vector<std::uint64_t> alive(arenas_.size());
  // What a round before makes lives into the next one at most.
  for (int point = num_slots; point < (1 + num_rounds) * num_slots; ++point) {
    std::fill(alive.begin(), alive.end(), 0);
    const int present = point / num_slots;
    for (int round = present - 1; round < present + kRoundsInFlight; ++round) {
      const int first = round * num_slots;
      for (const RowBlocks& block : memory.blocks) {
        if (first + block.last_reader < point) continue;
        if (block.writer == RowBlocks::kAtAcceptance) {
          alive.back() += block.bytes;
        } else {
          alive[static_cast<std::size_t>((first + block.writer) % num_workers)] += written_bytes(memory, block, first, point, num_workers);
        }
      }
    }
    for (std::size_t i = 0; i < arenas_.size(); ++i) arenas_[i] = std::max(arenas_[i], alive[i]);
  }
}

void ActivationBudget::add(const ActivationBudget& other) {
  for (std::size_t i = 0; i < arenas_.size(); ++i) arenas_[i] += other.arenas_[i];
}

std::uint64_t ActivationBudget::bytes() const {
  std::uint64_t sum = 0;
  for (const std::uint64_t arena : arenas_) sum += align_up(arena, ArenaView::kPieceBytes);
  return sum;
}

}  // namespace rp
