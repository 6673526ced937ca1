// cuda/pinned_memory.h
// Host memory that is registered with the driver: the GPU reads and writes it by itself, at the bus's speed.
//
// A process registers for itself, also what others have registered. What cannot be registered is none: copies to and
// from it go through a pinned buffer (CudaStream). Owned by the CudaDevice; for any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "common/mutex.h"
#include "cuda/context.h"

namespace rp {

class PinnedMemory {
 public:
  // The context must outlive it.
  explicit PinnedMemory(const CudaContext& context) : context_(context) {}
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // Registers whole pages. `is_read_only`: this process maps it so. Empty text: done; else why not, and the memory is
  // as before. REQUIRES: bytes > 0, and no part of it is registered.
  [[nodiscard]] std::string add(std::byte* data, std::uint64_t bytes, bool is_read_only);

  // The part of a range of memory from its beginning that is registered in one piece, or is not registered.
  struct Extent {
    std::uint64_t bytes = 0;
    bool is_registered = false;
  };
  [[nodiscard]] Extent extent(const std::byte* data, std::uint64_t bytes) const;

  // Where the GPU sees this byte. REQUIRES: it is registered.
  [[nodiscard]] CUdeviceptr device_address(const std::byte* data) const;

 private:
  struct Piece {
    std::uint64_t bytes = 0;
    CUdeviceptr device = 0;
  };
  using Pieces = std::map<const std::byte*, Piece>;
  // The piece with this byte, or the end.
  [[nodiscard]] Pieces::const_iterator find(const std::byte* data) const RP_REQUIRES(mutex_);
  [[nodiscard]] CUresult register_pages(std::byte* data, std::uint64_t bytes, bool is_read_only) const;

  const CudaContext& context_;
  mutable Mutex mutex_;
  Pieces pieces_ RP_GUARDED_BY(mutex_);
};

}  // namespace rp
