// coordinator/input_blocks.h
// The coordinator's own arena: inputs and loss arguments of the rounds in flight.
//
// Owned by the Coordinator. place() is called by the user's thread, free() by the commit thread.
#pragma once

#include <cstdint>
#include <vector>

#include "common/mutex.h"
#include "hoststore/arena_allocator.h"
#include "hoststore/store.h"

namespace rp {

// Inputs of one microbatch.
struct MicrobatchData {
  std::vector<TensorView> inputs;
  std::vector<TensorView> arguments;
};

class InputBlocks {
 public:
  explicit InputBlocks(Store& store) : store_(store), allocator_(store.arena(kCoordinatorArena)) {}

  // Copies the inputs of a round's attempt and writes their places. Throws rp::Error (kNoResource) if they do not fit,
  // keeping none of them.
  void place(std::uint64_t attempt, const std::vector<MicrobatchData>& microbatches);

  // REQUIRES: place() gave a block this offset and it was not freed since.
  void free(std::uint64_t offset) {
    MutexLock lock(mutex_);
    allocator_.free(offset);
  }

 private:
  void place_block(BlockPlace& place, const std::vector<TensorView>& tensors);

  Store& store_;
  Mutex mutex_;
  ArenaAllocator allocator_ RP_GUARDED_BY(mutex_);
};

}  // namespace rp
