// cuda/pinned_memory.h
// Registers host memory with the driver, so that the GPU reads and writes it directly, at the bus's
// speed.
//
// Each process registers memory for itself, even if other processes have registered the same
// memory. Copies to and from memory that cannot be registered go through a pinned buffer
// (CudaStream). Owned by the CudaDevice. Thread-safe.
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

  // Registers whole pages. `is_read_only`: this process maps them read-only. Returns an empty text
  // on success, else the reason, and the memory is unchanged. REQUIRES: bytes > 0, and no part of
  // the memory is registered.
  [[nodiscard]] std::string add(std::byte* data, std::uint64_t bytes, bool is_read_only);

  // The first part of a range of memory that is either registered as one piece or not registered.
  struct Extent {
    std::uint64_t bytes = 0;
    bool is_registered = false;
  };
  [[nodiscard]] Extent extent(const std::byte* data, std::uint64_t bytes) const;

  // Returns the GPU's address of this byte. REQUIRES: it is registered.
  [[nodiscard]] CUdeviceptr device_address(const std::byte* data) const;

 private:
  struct Piece {
    std::uint64_t bytes = 0;
    CUdeviceptr device = 0;
  };
  using Pieces = std::map<const std::byte*, Piece>;
  // Returns the piece that contains this byte, or end().
  [[nodiscard]] Pieces::const_iterator find(const std::byte* data) const RP_REQUIRES(mutex_);
  [[nodiscard]] CUresult register_pages(std::byte* data, std::uint64_t bytes, bool is_read_only) const;

  const CudaContext& context_;
  mutable Mutex mutex_;
  Pieces pieces_ RP_GUARDED_BY(mutex_);
};

}  // namespace rp
