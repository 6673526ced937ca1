// coordinator/rounds/round_blocks.h
// Counts the readers of the blocks of rounds, and frees blocks without readers
// (docs/design/rounds.md).
//
// The readers of a row of blocks are the slots that will read it, and the caller if the row is kept
// for the caller. A row without readers is freed, but not before the slot that writes it is
// committed. When a round is done and has no rows left, its table is freed, too. If a round reads a
// block of another round (one of its origins), the reader counts in that other round.
//
// Owned by the RoundFlow and guarded by the Coordinator's mutex, as are the rounds. Only this class
// changes readers, unwritten and origins of a Round. Store, InputBlocks and FreeSender must outlive it.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "coordinator/rounds/free_sender.h"
#include "coordinator/rounds/input_blocks.h"
#include "coordinator/rounds/round.h"
#include "hoststore/store.h"

namespace rp {

class RoundBlocks {
 public:
  RoundBlocks(Store& store, InputBlocks& inputs, FreeSender& frees)
      : store_(store), inputs_(inputs), frees_(frees), live_(store.num_workers()) {}

  // Makes the round read `block` in place of its own row. REQUIRES: called before add_readers().
  static void set_origin(Round& round, BlockRow row, const BlockOfRound& block) { round.origins[row] = block; }
  // Makes the round read these blocks in place of parts of its inputs and arguments. REQUIRES:
  // called before add_readers().
  static void import(Round& round, const std::vector<BlockOfRound>& inputs, const std::vector<BlockOfRound>& arguments);

  // Counts the blocks that the round's slots will read and those that its traits keep for the
  // caller, and writes the origins to the round's table. REQUIRES: called once for a round, before
  // its first slot is dispatched.
  void add_readers(Round& round);

  // Adds a reader. REQUIRES: the block has a reader already, or its round has just been created.
  static void keep(const BlockOfRound& block) { ++block.round->readers[block.row]; }
  // Removes a reader. REQUIRES: the block has one.
  void release(const BlockOfRound& block);

  // Marks a slot as committed: the blocks that it wrote exist, and it does not read its inputs any
  // more.
  void commit(const std::shared_ptr<Round>& round, const Command& command);
  // Releases the inputs and outputs of slots that will never be dispatched, given by their
  // commands.
  void drop(const std::shared_ptr<Round>& round, std::span<const Command> commands);

  // Ends a round, which reads no blocks of other rounds any more. REQUIRES: the round has just become done.
  void end(Round& round);

  // Returns the blocks in a worker's arena that committed slots wrote and that are not freed, in any order.
  [[nodiscard]] std::vector<LiveBlock> live(int worker) const;

 private:
  void release_inputs(const std::shared_ptr<Round>& round, const Command& command);
  // Calls action(place) for each block of a row that exists.
  template <typename Action>
  void for_each_block(const Round& round, BlockRow row, Action&& action) const;
  void free_row(Round& round, BlockRow row);
  void free_block(const BlockPlace& place);
  void free_table_if_unused(Round& round);

  Store& store_;
  InputBlocks& inputs_;
  FreeSender& frees_;
  std::vector<std::unordered_map<std::uint64_t, std::uint64_t>> live_;  // offset -> bytes, by the arena's worker
};

}  // namespace rp
