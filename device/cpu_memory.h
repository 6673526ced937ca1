// device/cpu_memory.h
// Allocates the memory of a CPU worker: LibTorch's tensors come from an arena whose pages stay with
// the process once they were used, and the worker's buffers, which are kept anyway, from mappings
// of their own.
//
// In the first rounds, the arena grows to the size that the layers need, so later steps cause no
// page faults and clear no pages. It contains only tensors, because it is empty between two tasks,
// and a buffer among the tensors would split it for good. Pages are huge if the system allows it.
// Owned by the CpuDevice. Thread-safe.
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
  // Only reserves addresses. Throws rp::Error (kNoResource).
  CpuMemory();
  ~CpuMemory();
  CpuMemory(const CpuMemory&) = delete;
  CpuMemory& operator=(const CpuMemory&) = delete;

  // All memory is aligned to 4096 bytes and has its pages. Buffers contain zeros; the contents of a
  // tensor are undefined. Both throw rp::Error (kNoResource), which lists how much memory the
  // worker has for each purpose.
  [[nodiscard]] std::byte* allocate_tensor(std::uint64_t bytes);
  [[nodiscard]] std::byte* allocate_buffer(std::uint64_t bytes, MemoryUse use);
  // Provides cleared pages for the next allocate_buffer(bytes, use). They count as `use` from now
  // on. Does nothing if memory is lacking, because allocate_buffer() will report that.
  void prepare_buffer(std::uint64_t bytes, MemoryUse use);
  // The pages stay with the process. REQUIRES: allocate_tensor() returned `data`.
  void free_tensor(std::byte* data);
  // REQUIRES: allocate_buffer(bytes, use) returned `data`.
  void free_buffer(std::byte* data, std::uint64_t bytes, MemoryUse use);

  // Counts this tensor as `use` from now on. Does nothing if allocate_tensor() did not return
  // `data`.
  void count_tensor_as(const std::byte* data, MemoryUse use);
  // Returns whether an address is in the arena of the tensors.
  [[nodiscard]] bool is_tensor(const void* data) const { return data >= base_ && data < base_ + range_bytes_; }

  // Leaves limit_bytes 0: the limit is that of the machine.
  [[nodiscard]] DeviceMemoryPeaks peaks() const { return book_.peaks(); }
  ArenaBook::Level take_tensor_level() { return book_.take_tensor_level(); }

 private:
  static constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;

  struct PreparedBuffer {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    MemoryUse use{};
  };

  // Lengthens the arena so that a tensor of this size fits, if no other thread allocates the space
  // first.
  void grow_for(std::uint64_t bytes);
  [[noreturn]] void fail(std::uint64_t bytes, MemoryUse use, int error) const;

  std::uint64_t range_bytes_;   // length of the address range: the machine's memory, or what could be reserved
  std::byte* range_ = nullptr;  // as it was mapped; not aligned
  std::byte* base_ = nullptr;   // the first huge page in the range
  Mutex growing_;
  std::uint64_t bytes_ RP_GUARDED_BY(growing_) = 0;  // length of the arena, from base_ on
  Mutex preparing_;
  std::vector<PreparedBuffer> prepared_ RP_GUARDED_BY(preparing_);
  ArenaBook book_;
};

}  // namespace rp
