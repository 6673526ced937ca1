// coordinator/rounds/round_blocks.h
// Who still reads which block of a round, and the freeing of blocks that nobody reads (docs/design/rounds.md).
//
// A row of blocks has readers: the slots that will read it, and the caller where something is kept for him. Without
// readers it is freed, but not before the slot that writes it is committed; a round that is done and has no rows left
// loses its table as well. What a round reads of another one (its origins) counts there.
//
// Owned by the Coordinator and guarded by its mutex, as are the rounds: readers, unwritten and origins of a Round are
// changed here only. Store and InputBlocks must outlive it.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "coordinator/rounds/free_sender.h"
#include "coordinator/rounds/input_blocks.h"
#include "coordinator/rounds/round.h"
#include "hoststore/store.h"

namespace rp {

class RoundBlocks {
 public:
  RoundBlocks(Store& store, InputBlocks& inputs) : store_(store), inputs_(inputs), frees_(store) {}

  // The round reads this in place of a row of its own. REQUIRES: before add_readers().
  static void set_origin(Round& round, BlockRow row, const BlockOfRound& block) { round.origins[row] = block; }
  // Likewise these, in place of inputs and arguments.
  static void import(Round& round, const std::vector<BlockOfRound>& inputs, const std::vector<BlockOfRound>& arguments);

  // Counts what the round's slots will read and what its traits keep for the caller, and tells its table the origins.
  // REQUIRES: once a round, before its first slot is dispatched.
  void add_readers(Round& round);

  // One reader more. REQUIRES: there is one already, or the block's round has just been made.
  static void keep(const BlockOfRound& block) { ++block.round->readers[block.row]; }
  // One reader less. REQUIRES: there is one.
  void release(const BlockOfRound& block);

  // A slot of the round is committed: what it wrote is there, what it read has a reader less.
  void commit(const std::shared_ptr<Round>& round, const Command& command);
  // These slots, commands of the round, will never be dispatched.
  void drop(const std::shared_ptr<Round>& round, std::span<const Command> commands);

  // REQUIRES: all_done of the round was just set. It reads nothing of others any more.
  void end(Round& round);

  // Tells the workers of blocks that they had no place for in their rings. False: there still are such.
  bool flush_frees() { return frees_.flush(); }

 private:
  void release_inputs(const std::shared_ptr<Round>& round, const Command& command);
  void free_row(Round& round, BlockRow row);
  void free_block(const BlockPlace& place);
  void free_table_if_unused(Round& round);

  Store& store_;
  InputBlocks& inputs_;
  FreeSender frees_;
};

}  // namespace rp
