// hoststore/arena_allocator.h
// Memory of an arena for its owner: blocks that are allocated and freed; the arena grows where it is too short.
//
// Not thread-safe. The ArenaView must outlive it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "hoststore/arena_view.h"
#include "hoststore/block_allocator.h"

namespace rp {

class ArenaAllocator {
 public:
  explicit ArenaAllocator(ArenaView& arena) : arena_(arena) {}

  // The offset of a new block. Throws rp::Error (kNoResource) beyond the arena's budget or the machine's memory.
  [[nodiscard]] std::uint64_t allocate(std::uint64_t bytes) {
    if (const auto offset = blocks_.allocate(bytes)) return *offset;
    // Growing looks at the machine's memory, which takes a while: not for every block.
    const std::uint64_t total = blocks_.total_bytes();
    const std::uint64_t spare = std::min({total / 8, kMostSpareBytes, arena_.limit_bytes() - total});
    const std::uint64_t more = std::max(blocks_.missing(bytes), spare);
    arena_.grow(total + more);
    blocks_.extend(more);
    return blocks_.allocate(bytes).value();
  }

  // REQUIRES: allocate() gave `offset` and it was not freed since.
  void free(std::uint64_t offset) { blocks_.free(offset); }

 private:
  static constexpr std::uint64_t kMostSpareBytes = std::uint64_t{64} << 20;

  ArenaView& arena_;
  BlockAllocator blocks_;
};

}  // namespace rp
