// hoststore/arena_allocator.h
// Allocates and frees parts of an arena for the arena's owner, and lengthens the arena when it is
// too short.
//
// Not thread-safe. The ArenaView must outlive it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "hoststore/arena_view.h"
#include "hoststore/control.h"
#include "hoststore/range_allocator.h"

namespace rp {

class ArenaAllocator {
 public:
  explicit ArenaAllocator(ArenaView& arena) : arena_(arena) {}
  // Begins with an arena that an earlier owner has left, in which these blocks are in use.
  ArenaAllocator(ArenaView& arena, std::span<const LiveBlock> live) : arena_(arena) {
    ranges_.extend(arena.segment().bytes());
    for (const LiveBlock& block : live) ranges_.allocate_at(block.offset, block.bytes);
  }

  // Returns the offset of a new allocation, and lengthens the arena if necessary. Throws rp::Error
  // (kNoResource) if the arena's limit or the machine's memory is exceeded.
  [[nodiscard]] std::uint64_t allocate(std::uint64_t bytes) {
    if (const auto offset = ranges_.allocate(bytes)) return *offset;
    // Growing checks how much memory the machine has available, which is slow, so it must not
    // happen for every allocation. The spare part is small, so that the arena does not become much
    // longer than needed.
    const std::uint64_t total = ranges_.total_bytes();
    const std::uint64_t spare = std::min(total / 64, arena_.limit_bytes() - total);
    ranges_.extend(arena_.grow(total + std::max(ranges_.missing(bytes), spare)) - total);
    return ranges_.allocate(bytes).value();
  }

  // REQUIRES: allocate() returned `offset`, and it was not freed since.
  void free(std::uint64_t offset) { ranges_.free(offset); }

 private:
  ArenaView& arena_;
  RangeAllocator ranges_;
};

}  // namespace rp
