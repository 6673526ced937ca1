// coordinator/rounds/input_blocks.h
// Allocates from the coordinator's own arena: the tables of rounds, and the blocks that the
// coordinator passes to workers.
//
// Owned by the Coordinator. The caller's thread allocates; any thread may free.
#pragma once

#include <cstdint>
#include <vector>

#include "common/mutex.h"
#include "coordinator/rounds/round.h"
#include "hoststore/arena_allocator.h"
#include "hoststore/store.h"

namespace rp {

// The contents of a block: tensors, and the description of their structure.
struct BlockContents {
  std::vector<TensorView> tensors;
  std::vector<std::byte> structure{};
};

// The inputs and the loss's arguments of a round, by microbatch. Imports are parts of them that
// other rounds made: outputs, in all microbatches.
struct RoundInputs {
  std::vector<BlockContents> inputs;
  std::vector<BlockContents> arguments{};  // only if the round has a loss
  std::vector<BlockOfRound> input_imports{};
  std::vector<BlockOfRound> argument_imports{};
};

class InputBlocks {
 public:
  explicit InputBlocks(Store& store) : store_(store), allocator_(store.arena(kCoordinatorArena)) {}

  // Copies the contents into a new block and enters it in a row of `table`. Throws rp::Error
  // (kNoResource) if the arena is full.
  void place(const BlockContents& contents, const RoundTable& table, BlockKind kind, int index, int microbatch);

  // Creates an empty table for a round that has none. Throws rp::Error (kNoResource) if the arena
  // is full.
  void place_table(Round& round);

  // Creates the table of a round, and blocks for those of its inputs that a task will read. Places
  // everything or nothing. Returns the bytes of the tensors. Throws rp::Error (kNoResource) if the
  // arena is full.
  std::uint64_t place_round(Round& round, const RoundInputs& inputs);

  // Copies a list to the arena and returns its offset. Throws rp::Error (kNoResource) if the arena is full.
  [[nodiscard]] std::uint64_t place_list(const std::vector<LiveBlock>& list);

  // REQUIRES: `offset` is a block, table or list of this arena that was not freed since.
  void free(std::uint64_t offset) {
    MutexLock lock(mutex_);
    allocator_.free(offset);
  }

 private:
  [[nodiscard]] std::uint64_t allocate(std::uint64_t bytes) {
    MutexLock lock(mutex_);
    return allocator_.allocate(bytes);
  }

  Store& store_;
  Mutex mutex_;
  ArenaAllocator allocator_ RP_GUARDED_BY(mutex_);
};

}  // namespace rp
