// hoststore/range_allocator.h
// Which parts of an arena are in use, an activation arena or one of a device's memory (device/arena_book.h): its
// owner's private book.
//
// Neighbours among free ranges are merged; deterministic. Not thread-safe: the owner's one allocating thread uses it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace rp {

class RangeAllocator {
 public:
  // What an allocation of `bytes` bytes takes: whole pages.
  [[nodiscard]] static std::uint64_t rounded_bytes(std::uint64_t bytes);

  // Adds memory at the end of the arena.
  void extend(std::uint64_t bytes);

  // In the smallest free range that is long enough, at its begin or its end; or at the begin of the first one. What
  // stays for long and what comes and goes are kept apart by kFirst and kBestEnd.
  enum class Fit { kBest, kBestEnd, kFirst };
  // The offset of a new allocation of at least `bytes` bytes, or nothing if no free range is long enough.
  [[nodiscard]] std::optional<std::uint64_t> allocate(std::uint64_t bytes, Fit fit = Fit::kBest);

  // REQUIRES: allocate() gave `offset` and it was not freed since.
  void free(std::uint64_t offset);

  // What allocate() took for it, by now. REQUIRES: as of free().
  [[nodiscard]] std::uint64_t bytes_at(std::uint64_t offset) const;
  // The longest allocation that there is room for.
  [[nodiscard]] std::uint64_t largest_free() const { return free_by_size_.empty() ? 0 : free_by_size_.rbegin()->first; }

  // Bytes by which extend() must lengthen the arena for allocate(bytes) to succeed: the end may be free already.
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
