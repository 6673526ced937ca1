// device/arena_book.h
// Tracks which parts of an arena of a worker's memory are in use, for what purpose, and the peak of
// each purpose.
//
// It handles offsets only; the owner of the memory adds its address. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "common/mutex.h"
#include "hoststore/memory_use.h"
#include "hoststore/range_allocator.h"

namespace rp {

class ArenaBook {
 public:
  // Adds memory at the end of the arena.
  void extend(std::uint64_t bytes);
  // Returns the number of bytes by which extend() must lengthen the arena for allocate(bytes) to
  // succeed.
  [[nodiscard]] std::uint64_t missing(std::uint64_t bytes) const;

  // Returns the offset of a part that is aligned to 4096 bytes, or nothing if no free part is long
  // enough. LibTorch's tensors, which come and go, are placed at the end of the smallest hole that
  // fits. Memory that a worker keeps is placed at the beginning of the first hole that fits, so
  // that it does not split the free space for tensors.
  [[nodiscard]] std::optional<std::uint64_t> allocate(std::uint64_t bytes, MemoryUse use);
  // REQUIRES: allocate() returned this offset.
  void free(std::uint64_t offset);
  // Counts this part as `use` from now on. Does nothing if allocate() did not return the offset.
  void count_as(std::uint64_t offset, MemoryUse use);

  // Counts memory that the worker allocates and frees outside of the arena.
  void add_elsewhere(MemoryUse use, std::uint64_t bytes);
  void remove_elsewhere(MemoryUse use, std::uint64_t bytes);

  [[nodiscard]] BytesByUse bytes_by_use() const;
  // The length of the longest free part.
  [[nodiscard]] std::uint64_t largest_free() const;
  // Leaves limit_bytes and resident_bytes empty, because the book does not know them.
  [[nodiscard]] DeviceMemoryPeaks peaks() const;

  // The bytes of LibTorch's tensors (kTensors), and their peak since the last call.
  struct Level {
    std::uint64_t bytes = 0;
    std::uint64_t peak_bytes = 0;
  };
  Level take_tensor_level();

 private:
  void add(MemoryUse use, std::uint64_t bytes) RP_REQUIRES(mutex_);

  mutable Mutex mutex_;
  RangeAllocator ranges_ RP_GUARDED_BY(mutex_);
  std::map<std::uint64_t, MemoryUse> use_of_ RP_GUARDED_BY(mutex_);  // by offset
  BytesByUse by_use_ RP_GUARDED_BY(mutex_){};
  std::uint64_t elsewhere_bytes_ RP_GUARDED_BY(mutex_) = 0;
  DeviceMemoryPeaks peaks_ RP_GUARDED_BY(mutex_);
  std::uint64_t max_tensor_bytes_ RP_GUARDED_BY(mutex_) = 0;  // since take_tensor_level()
};

}  // namespace rp
