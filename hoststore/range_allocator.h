// hoststore/range_allocator.h
// Tracks which parts of an arena are in use: of an activation arena of the host store, or of an
// arena of a worker's memory (device/arena_book.h).
//
// Adjacent free ranges are merged. The results are deterministic. Not thread-safe: callers that
// share an allocator lock a mutex, as ArenaBook does.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace rp {

class RangeAllocator {
 public:
  // Returns the number of bytes that an allocation of `bytes` bytes occupies: whole pages, and at
  // least one.
  [[nodiscard]] static std::uint64_t rounded_bytes(std::uint64_t bytes);

  // Adds memory at the end of the arena.
  void extend(std::uint64_t bytes);

  // Where to place an allocation: kBest at the beginning of the smallest free range that is long
  // enough, kBestEnd at the end of that range, or kFirst at the beginning of the first free range
  // that is long enough. Long-lived allocations with kFirst and short-lived ones with kBestEnd are
  // kept apart.
  enum class Fit { kBest, kBestEnd, kFirst };
  // Returns the offset of a new allocation of at least `bytes` bytes, or nothing if no free range
  // is long enough.
  [[nodiscard]] std::optional<std::uint64_t> allocate(std::uint64_t bytes, Fit fit = Fit::kBest);

  // Allocates the part of the arena that begins at `offset`. REQUIRES: it is free, and inside the arena.
  void allocate_at(std::uint64_t offset, std::uint64_t bytes);

  // REQUIRES: `offset` is the beginning of an allocation that was not freed since.
  void free(std::uint64_t offset);

  // Returns the number of bytes that the allocation at `offset` occupies. REQUIRES: allocate()
  // returned `offset`, and it was not freed since.
  [[nodiscard]] std::uint64_t bytes_at(std::uint64_t offset) const;
  // The length of the longest free range.
  [[nodiscard]] std::uint64_t largest_free() const { return free_by_size_.empty() ? 0 : free_by_size_.rbegin()->first; }

  // Returns the number of bytes by which extend() must lengthen the arena for allocate(bytes) to
  // succeed. Free memory at the end of the arena is used.
  [[nodiscard]] std::uint64_t missing(std::uint64_t bytes) const;

  [[nodiscard]] std::uint64_t total_bytes() const { return total_; }
  [[nodiscard]] std::uint64_t used_bytes() const { return used_; }

 private:
  void add_free(std::uint64_t offset, std::uint64_t bytes);
  void remove_free(std::uint64_t offset, std::uint64_t bytes);

  std::uint64_t total_ = 0;
  std::uint64_t used_ = 0;
  std::map<std::uint64_t, std::uint64_t> allocated_;                // offset -> bytes
  std::map<std::uint64_t, std::uint64_t> free_;                     // offset -> bytes
  std::set<std::pair<std::uint64_t, std::uint64_t>> free_by_size_;  // (bytes, offset)
};

}  // namespace rp
