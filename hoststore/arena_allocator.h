// hoststore/arena_allocator.h
// Memory of an arena for its owner, who allocates and frees parts of it; the arena grows where it is too short.
//
// Not thread-safe. The ArenaView must outlive it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "hoststore/arena_view.h"
#include "hoststore/range_allocator.h"

namespace rp {

class ArenaAllocator {
 public:
  explicit ArenaAllocator(ArenaView& arena) : arena_(arena) {}

  // The offset of a new allocation. Throws rp::Error (kNoResource) beyond the arena's budget or the machine's memory.
  [[nodiscard]] std::uint64_t allocate(std::uint64_t bytes) {
    if (const auto offset = ranges_.allocate(bytes)) return *offset;
    // Growing looks at the machine's memory, which takes a while: not for every allocation. A little spare only, so
    // that the arena stays about as long as the budget says.
    const std::uint64_t total = ranges_.total_bytes();
    const std::uint64_t spare = std::min(total / 64, arena_.limit_bytes() - total);
    ranges_.extend(arena_.grow(total + std::max(ranges_.missing(bytes), spare)) - total);
    return ranges_.allocate(bytes).value();
  }

  // REQUIRES: allocate() gave `offset` and it was not freed since.
  void free(std::uint64_t offset) { ranges_.free(offset); }

 private:
  ArenaView& arena_;
  RangeAllocator ranges_;
};

}  // namespace rp
