// cuda/mirrored_memory.h
// Holds memory of a GPU together with pinned memory of the host's that it is copied to: what kernels write and the host
// reads.
//
// The device must outlive it. It is given back when no stream uses it any more.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/cuda_device.h"

namespace rp {

class MirroredMemory {
 public:
  // Contents undefined. Throws rp::Error (kNoResource).
  MirroredMemory(CudaDevice& device, std::uint64_t bytes, MemoryUse use);
  MirroredMemory(MirroredMemory&& other) noexcept;
  MirroredMemory& operator=(MirroredMemory&&) = delete;
  ~MirroredMemory();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] const std::byte* host() const { return host_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

  // Enqueues the copy to the host on the stream of outputs: a long copy that is under way in that direction holds up
  // this stream and not the one that computes. REQUIRES: that stream comes after what wrote the memory, and compute
  // writes it again only when the host has seen this copy done.
  void download() const;

 private:
  CudaDevice& device_;
  std::uint64_t bytes_;
  std::byte* data_ = nullptr;
  std::byte* host_ = nullptr;
};

}  // namespace rp
