// device/arena_book.h
// Keeps the book of an arena of a worker's memory: which parts are in use, for what, and the peak of each purpose.
//
// Knows offsets only; whoever owns the memory adds its address. For any thread.
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
  // Bytes by which extend() must lengthen the arena for allocate(bytes) to succeed.
  [[nodiscard]] std::uint64_t missing(std::uint64_t bytes) const;

  // The offset of a part that is aligned to 4096 bytes, or nothing if no free part is that long. LibTorch's tensors,
  // which come and go, are put at the end of the smallest hole that fits, and what a worker keeps at the beginning of
  // the first one, so that buffers that stay do not split the room of tensors.
  [[nodiscard]] std::optional<std::uint64_t> allocate(std::uint64_t bytes, MemoryUse use);
  // REQUIRES: allocate() gave it.
  void free(std::uint64_t offset);
  // From now on this part counts as `use`. Does nothing if allocate() did not give the offset.
  void count_as(std::uint64_t offset, MemoryUse use);

  // Counts memory that the worker takes outside the arena, and gives back there.
  void add_elsewhere(MemoryUse use, std::uint64_t bytes);
  void remove_elsewhere(MemoryUse use, std::uint64_t bytes);

  [[nodiscard]] BytesByUse bytes_by_use() const;
  // The longest part that is free.
  [[nodiscard]] std::uint64_t largest_free() const;
  // Without limit_bytes and resident_bytes, which are not the book's to know.
  [[nodiscard]] DeviceMemoryPeaks peaks() const;

  // What LibTorch's tensors (kTensors) take, and their peak since the last call.
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
