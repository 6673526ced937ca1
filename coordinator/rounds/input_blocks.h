// coordinator/rounds/input_blocks.h
// The coordinator's own arena: the tables of rounds, and the blocks that it gives to workers.
//
// Owned by the Coordinator. Filled by the user's thread, freed by any.
#pragma once

#include <cstdint>
#include <vector>

#include "common/mutex.h"
#include "coordinator/rounds/round.h"
#include "hoststore/arena_allocator.h"
#include "hoststore/store.h"

namespace rp {

// Tensors and what they mean, as a block carries them.
struct BlockContents {
  std::vector<TensorView> tensors;
  std::vector<std::byte> structure{};
};

// What a round is given, by microbatch; and parts of it that other rounds made: outputs, in all microbatches.
struct RoundInputs {
  std::vector<BlockContents> inputs;
  std::vector<BlockContents> arguments{};  // with a loss only
  std::vector<BlockOfRound> input_imports{};
  std::vector<BlockOfRound> argument_imports{};
};

class InputBlocks {
 public:
  explicit InputBlocks(Store& store) : store_(store), allocator_(store.arena(kCoordinatorArena)) {}

  // Copies the contents into a new block, which becomes that of a row of `table`. Throws rp::Error (kNoResource) if it
  // does not fit.
  void place(const BlockContents& contents, const RoundTable& table, BlockKind kind, int index, int microbatch);

  // A new empty table, for a round that has none. Throws likewise.
  void place_table(Round& round);

  // Likewise, with what the round is given and somebody will read. All or nothing. Returns the bytes of the tensors.
  std::uint64_t place_round(Round& round, const RoundInputs& inputs);

  // REQUIRES: a block or table of this arena that was not freed since.
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
