// device/cpu_memory.h
// The memory of a CPU worker: an arena for LibTorch's tensors, whose pages stay with the process once they were used,
// and mappings of their own for the worker's buffers, which are kept anyway.
//
// The arena grows to what the layers take, in the first rounds: later steps cause no page faults and clear no pages. It
// is the tensors' alone, because between two tasks it is empty, and a buffer among them would split it for good. Pages
// are huge where the system allows it. Owned by the CpuDevice; for any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/mutex.h"
#include "device/arena_book.h"
#include "hoststore/memory_use.h"

namespace rp {

class CpuMemory {
 public:
  // Reserves addresses only. Throws rp::Error (kNoResource).
  CpuMemory();
  ~CpuMemory();
  CpuMemory(const CpuMemory&) = delete;
  CpuMemory& operator=(const CpuMemory&) = delete;

  // All memory is aligned to 4096 bytes, and its pages are there; buffers are zeros, a tensor's contents are undefined.
  // Each throws rp::Error (kNoResource) with what the worker has for what purpose.
  [[nodiscard]] std::byte* allocate_tensor(std::uint64_t bytes);
  [[nodiscard]] std::byte* allocate_buffer(std::uint64_t bytes, MemoryUse use);
  // Clears the pages that the next allocate_buffer(bytes, use) then finds. They count as `use` from now on. Does
  // nothing where memory is lacking: allocate_buffer() reports that.
  void prepare_buffer(std::uint64_t bytes, MemoryUse use);
  // The pages stay. REQUIRES: allocate_tensor() gave it.
  void free_tensor(std::byte* data);
  // REQUIRES: allocate_buffer(bytes, use) gave it.
  void free_buffer(std::byte* data, std::uint64_t bytes, MemoryUse use);

  // From now on it counts as `use`. Does nothing if allocate_tensor() did not give it.
  void count_tensor_as(const std::byte* data, MemoryUse use);
  // Whether an address is in the tensors' arena.
  [[nodiscard]] bool is_tensor(const void* data) const { return data >= base_ && data < base_ + range_bytes_; }

  // limit_bytes is 0: the limit is the machine's.
  [[nodiscard]] DeviceMemoryPeaks peaks() const { return book_.peaks(); }
  ArenaBook::Level take_tensor_level() { return book_.take_tensor_level(); }

 private:
  static constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;

  struct PreparedBuffer {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    MemoryUse use{};
  };

  // Lengthens the arena so that a tensor of so many bytes fits if no other thread takes its place first.
  void grow_for(std::uint64_t bytes);
  [[noreturn]] void fail(std::uint64_t bytes, MemoryUse use, int error) const;

  const std::uint64_t range_bytes_;  // of addresses: as many as the machine has memory
  std::byte* range_ = nullptr;       // as it was mapped
  std::byte* base_ = nullptr;        // its first huge page
  Mutex growing_;
  std::uint64_t bytes_ RP_GUARDED_BY(growing_) = 0;  // of memory, from base_ on
  Mutex preparing_;
  std::vector<PreparedBuffer> prepared_ RP_GUARDED_BY(preparing_);
  ArenaBook book_;
};

}  // namespace rp
