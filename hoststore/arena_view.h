// hoststore/arena_view.h
// An activation arena: a memory file that its owner lengthens and everybody maps piece by piece.
//
// Each process reserves an address range once and maps new parts of the file into it when it first meets them, so an
// allocation's address never changes. Owned by the Store. data() and grow() may be called by several threads.
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

  // `limit_bytes`: how far the arena may ever grow (address space only).
  // `is_sparse`: grow() reserves nothing (Segment::lengthen()).
  ArenaView(Segment segment, std::uint64_t limit_bytes, bool is_sparse = false);
  ~ArenaView();
  ArenaView(const ArenaView&) = delete;
  ArenaView& operator=(const ArenaView&) = delete;

  // The memory of an allocation. Maps the file up to its end if that is new. Throws rp::Error if the file is shorter.
  [[nodiscard]] std::byte* data(std::uint64_t offset, std::uint64_t bytes);

  // Owner only: lengthens the arena to at least `bytes`, with the pages of the new part present in this process;
  // returns its length then. Throws rp::Error (kNoResource) with the limit.
  std::uint64_t grow(std::uint64_t bytes);

  // What is mapped by now.
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
