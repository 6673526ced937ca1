#include "coordinator/rounds/round_blocks.h"

#include "common/check.h"

namespace rp {

void RoundBlocks::import(Round& round, const std::vector<BlockOfRound>& inputs,
                         const std::vector<BlockOfRound>& arguments) {
  for (std::size_t i = 0; i < inputs.size(); ++i)
    set_origin(round, {BlockKind::kInputImport, static_cast<int>(i)}, inputs[i]);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    set_origin(round, {BlockKind::kArgumentImport, static_cast<int>(i)}, arguments[i]);
  }
}

void RoundBlocks::add_readers(Round& round) {
  const RoundTable table = store_.round_table(round);
  for (const auto& [row, origin] : round.origins) {
    table.origin(row.kind, row.index) = {.table = origin.round->table,
                                         .table_bytes = origin.round->table_bytes,
                                         .kind = origin.row.kind,
                                         .index = origin.row.index};
  }
  for (const Slot& slot : round.slots) {
    const Command command = command_of(round, slot);
    for (const BlockRow& row : output_rows(command, store_.catalogue())) round.unwritten.insert(row);
    for (const BlockRow& row : input_rows(command, store_.catalogue())) {
      const auto origin = round.origins.find(row);
      ++(origin == round.origins.end() ? round.readers[row] : origin->second.round->readers[origin->second.row]);
    }
  }
  if (round.traits.gives_outputs()) {
    ++round.readers[{BlockKind::kActivation, round.num_layers}];
  }
  if (round.traits.input_gradient) ++round.readers[{BlockKind::kGradient, 0}];
}

void RoundBlocks::release(const BlockOfRound& block) {
  Round& round = *block.round;
  const auto readers = round.readers.find(block.row);
  RP_ASSERT(readers != round.readers.end() && readers->second > 0);
  // A block that the caller drops early is freed once it is written.
  if (--readers->second == 0 && !round.unwritten.contains(block.row)) free_row(round, block.row);
}

void RoundBlocks::commit(const std::shared_ptr<Round>& round, const Command& command) {
  for (const BlockRow& row : output_rows(command, store_.catalogue())) {
    round->unwritten.erase(row);
    for_each_block(*round, row,
                   [this](const BlockPlace& place) { live_[place.arena].emplace(place.offset, place.bytes); });
    if (const auto readers = round->readers.find(row); readers != round->readers.end() && readers->second == 0) {
      free_row(*round, row);
    }
  }
  release_inputs(round, command);
}

void RoundBlocks::drop(const std::shared_ptr<Round>& round, std::span<const Command> commands) {
  for (const Command& command : commands) {
    for (const BlockRow& row : output_rows(command, store_.catalogue())) round->unwritten.erase(row);
  }
  for (const Command& command : commands) release_inputs(round, command);
}

void RoundBlocks::end(Round& round) {
  round.origins.clear();  // otherwise each round would keep the previous one alive
  free_table_if_unused(round);
}

void RoundBlocks::release_inputs(const std::shared_ptr<Round>& round, const Command& command) {
  for (const BlockRow& row : input_rows(command, store_.catalogue())) {
    const auto origin = round->origins.find(row);
    release(origin == round->origins.end() ? BlockOfRound{round, row} : origin->second);
  }
}

template <typename Action>
void RoundBlocks::for_each_block(const Round& round, BlockRow row, Action&& action) const {
  const RoundTable table = store_.round_table(round);
  for (int m = 0; m < (is_once_a_task(row.kind) ? 1 : table.num_microbatches()); ++m) {
    const BlockPlace& place = table.place(row.kind, row.index, m);
    if (place.bytes > 0) action(place);
  }
}

void RoundBlocks::free_row(Round& round, BlockRow row) {
  round.readers.erase(row);
  for_each_block(round, row, [this](const BlockPlace& place) { free_block(place); });
  free_table_if_unused(round);
}

void RoundBlocks::free_block(const BlockPlace& place) {
  if (place.arena == kCoordinatorArena) {
    inputs_.free(place.offset);
    return;
  }
  live_[place.arena].erase(place.offset);
  frees_.send(place.arena, place.offset);
}

std::vector<LiveBlock> RoundBlocks::live(int worker) const {
  std::vector<LiveBlock> blocks;
  for (const auto& [offset, bytes] : live_[worker]) blocks.push_back({.offset = offset, .bytes = bytes});
  return blocks;
}

void RoundBlocks::free_table_if_unused(Round& round) {
  if (!round.is_done() || !round.readers.empty() || round.table_bytes == 0) return;
  inputs_.free(round.table);
  round.table_bytes = 0;
}

}  // namespace rp
