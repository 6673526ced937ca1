// cuda/mirrored_memory.h
// Holds GPU memory together with pinned host memory that it is copied to, for results that kernels
// write and the host reads.
//
// The device must outlive it. REQUIRES: no stream uses the memory when this object is destroyed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/cuda_device.h"

namespace rp {

class MirroredMemory {
 public:
  // The contents are undefined. Throws rp::Error (kNoResource).
  MirroredMemory(CudaDevice& device, std::uint64_t bytes, MemoryUse use);
  MirroredMemory(MirroredMemory&& other) noexcept;
  MirroredMemory& operator=(MirroredMemory&&) = delete;
  ~MirroredMemory();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] const std::byte* host() const { return host_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

  // Enqueues the copy to the host on the stream of outputs, so that a long copy in the same
  // direction delays this stream and not the one that computes. REQUIRES: that stream waits for the
  // kernels that wrote the memory, and the compute stream writes it again only after the host has
  // seen that this copy is done.
  void download() const;

 private:
  CudaDevice& device_;
  std::uint64_t bytes_;
  std::byte* data_ = nullptr;
  std::byte* host_ = nullptr;
};

}  // namespace rp
