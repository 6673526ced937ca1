// cuda/device_arena.h
// Manages the single allocation of GPU memory that a worker makes at its start, and counts the use
// of its parts. The driver is not asked for memory afterwards, so a step neither waits for the
// driver nor fails because of another program.
//
// Owned by the CudaDevice. Thread-safe. A caller may free memory only if no stream uses it any
// more, or only the stream on which the next owner will use it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/context.h"
#include "cuda/out_of_memory_report.h"
#include "device/arena_book.h"
#include "hoststore/memory_use.h"

namespace rp {

class DeviceArena {
 public:
  // The context must outlive it. Throws rp::Error (kNoResource) with the wanted and the free size.
  DeviceArena(const CudaContext& context, std::uint64_t bytes);
  ~DeviceArena();
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  // Returns memory that is aligned to 4096 bytes, or null if no free part is large enough.
  [[nodiscard]] std::byte* allocate(std::uint64_t bytes, MemoryUse use);
  // REQUIRES: `data` was returned by allocate().
  void free(std::byte* data);
  // Counts the memory as `use` from now on. Has no effect if allocate() did not return `data`.
  void count_as(const std::byte* data, MemoryUse use);

  // Returns true if the address is in the arena.
  [[nodiscard]] bool holds(const std::byte* data) const { return data >= base_ && data < base_ + bytes_; }

  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] MemoryState state() const;
  // Leaves resident_bytes empty, because the arena does not know it.
  [[nodiscard]] DeviceMemoryPeaks peaks() const;

  ArenaBook::Level take_tensor_level() { return book_.take_tensor_level(); }

 private:
  const CudaContext& context_;
  const std::uint64_t bytes_;
  std::byte* base_ = nullptr;
  ArenaBook book_;
};

}  // namespace rp
