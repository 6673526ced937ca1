// cuda/device_arena.h
// The one allocation of a GPU's memory that a worker makes at its start, and what parts of it are in use, for what:
// nothing is asked of the driver afterwards, so that a step can neither wait for it nor fail for another program's
// sake.
//
// Owned by the CudaDevice; for any thread. Who gives memory back says that no stream uses it any more, or that only the
// stream does which the next owner will use it on.
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
  // The context must outlive it. Throws rp::Error (kNoResource) with need and free.
  DeviceArena(const CudaContext& context, std::uint64_t bytes);
  ~DeviceArena();
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  // Aligned to 4096 bytes. Null if no free part is that long.
  [[nodiscard]] std::byte* allocate(std::uint64_t bytes, MemoryUse use);
  // REQUIRES: allocate() gave it.
  void free(std::byte* data);
  // From now on it counts as this. Nothing if allocate() did not give it.
  void count_as(const std::byte* data, MemoryUse use);

  // Whether an address is in it.
  [[nodiscard]] bool holds(const std::byte* data) const { return data >= base_ && data < base_ + bytes_; }

  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] MemoryState state() const;
  // resident_bytes is not its to know.
  [[nodiscard]] DeviceMemoryPeaks peaks() const;

  ArenaBook::Level take_tensor_level() { return book_.take_tensor_level(); }

 private:
  const CudaContext& context_;
  const std::uint64_t bytes_;
  std::byte* base_ = nullptr;
  ArenaBook book_;
};

}  // namespace rp
