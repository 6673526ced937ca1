// hoststore/arena_view.h
// An activation arena: a memory file that its owner lengthens and that each process maps piece by
// piece.
//
// Each process reserves an address range once, and maps new parts of the file into it when it first
// needs them, so the address of an allocation never changes. Owned by the Store. Several threads
// may call data() and grow() at the same time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/mutex.h"
#include "hoststore/memory/segment.h"

namespace rp {

class ArenaView {
 public:
  // Files grow by whole pieces of this size.
  static constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20;

  // `limit_bytes`: the maximum length of the arena; only address space is reserved for it.
  // `is_sparse`: grow() reserves no memory (see Segment::lengthen()).
  ArenaView(Segment segment, std::uint64_t limit_bytes, bool is_sparse = false);
  ~ArenaView();
  ArenaView(const ArenaView&) = delete;
  ArenaView& operator=(const ArenaView&) = delete;

  // Returns the memory of an allocation. Maps the file up to its end if this part is not mapped
  // yet. Throws rp::Error if the file is too short.
  [[nodiscard]] std::byte* data(std::uint64_t offset, std::uint64_t bytes);

  // Owner only: lengthens the arena to at least `bytes` and, unless it is sparse, populates the
  // pages of the new part in this process. Returns `bytes`, rounded up to whole pieces. Throws
  // rp::Error (kNoResource) if this exceeds the limit, which the message contains, or if the memory
  // cannot be reserved.
  std::uint64_t grow(std::uint64_t bytes);

  // The part of the arena that this process has mapped so far.
  [[nodiscard]] std::span<std::byte> mapped() const {
    // SYNC: acquire; pairs with the release in map_until().
    return {base_, mapped_bytes_.load(std::memory_order_acquire)};
  }

  [[nodiscard]] std::uint64_t limit_bytes() const { return limit_bytes_; }
  [[nodiscard]] const Segment& segment() const { return segment_; }

 private:
  void map_until(std::uint64_t offset, std::uint64_t bytes) RP_REQUIRES(mutex_);

  Segment segment_;
  const std::uint64_t limit_bytes_;
  const bool is_sparse_;
  std::byte* base_ = nullptr;
  std::atomic<std::uint64_t> mapped_bytes_{0};
  Mutex mutex_;  // one thread at a time maps or grows
};

}  // namespace rp
