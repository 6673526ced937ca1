// device/cpu_arena.h
// The memory of a CPU worker: one range of addresses whose pages stay with the process once they were used.
//
// Grows to what the layers take, in the first rounds, and gives nothing back: later steps cause no page faults and clear no pages.
// Pages are huge where the system allows it. Owned by the CpuDevice; for any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/mutex.h"
#include "device/arena_book.h"
#include "hoststore/memory_use.h"

namespace rp {

class CpuArena {
 public:
  // Reserves addresses only. Throws rp::Error (kNoResource).
  CpuArena();
  ~CpuArena();
  CpuArena(const CpuArena&) = delete;
  CpuArena& operator=(const CpuArena&) = delete;

  // Aligned to 4096 bytes, contents undefined. Throws rp::Error (kNoResource) with what the worker has for what purpose.
  [[nodiscard]] std::byte* allocate(std::uint64_t bytes, MemoryUse use);
  // REQUIRES: allocate() gave it.
  void free(std::byte* data);
  // From now on it counts as `use`. Does nothing if allocate() did not give it.
  void count_as(const std::byte* data, MemoryUse use);

  // Whether an address is in it.
  [[nodiscard]] bool holds(const void* data) const { return data >= base_ && data < base_ + range_bytes_; }

  // limit_bytes is 0: the limit is the machine's.
  [[nodiscard]] DeviceMemoryPeaks peaks() const { return book_.peaks(); }
  ArenaBook::Level take_tensor_level() { return book_.take_tensor_level(); }

 private:
  static constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;

  // Lengthens the arena so that allocate() of so many bytes succeeds if no other thread takes them first.
  void grow_for(std::uint64_t bytes, MemoryUse use);
  [[noreturn]] void fail(std::uint64_t bytes, MemoryUse use, int error) const;

  const std::uint64_t range_bytes_;  // of addresses: as many as the machine has memory
  std::byte* range_ = nullptr;       // as it was mapped
  std::byte* base_ = nullptr;        // its first huge page
  Mutex growing_;
  std::uint64_t bytes_ RP_GUARDED_BY(growing_) = 0;  // of memory, from base_ on
  ArenaBook book_;
};

}  // namespace rp
