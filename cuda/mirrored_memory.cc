#include "cuda/mirrored_memory.h"

#include <utility>

namespace rp {

MirroredMemory::MirroredMemory(CudaDevice& device, std::uint64_t bytes, MemoryUse use)
    : device_(device), bytes_(bytes) {
  const CudaContext& context = device.context();
  context.make_current();
  void* host = nullptr;
  context.check(context.driver().mem_host_alloc(&host, bytes, CU_MEMHOSTALLOC_PORTABLE),
                "taking pinned memory for results");
  host_ = static_cast<std::byte*>(host);
  try {
    data_ = device.take(bytes, use);
  } catch (...) {
    (void)context.driver().mem_free_host(host_);
    throw;
  }
}

MirroredMemory::MirroredMemory(MirroredMemory&& other) noexcept
    : device_(other.device_),
      bytes_(other.bytes_),
      data_(std::exchange(other.data_, nullptr)),
      host_(std::exchange(other.host_, nullptr)) {}

MirroredMemory::~MirroredMemory() {
  if (data_ == nullptr) return;
  try {
    device_.context().make_current();
    (void)device_.context().driver().mem_free_host(host_);
  } catch (const Error&) {  // the end of the process frees it
  }
  device_.arena().free(data_);
}

void MirroredMemory::download() const {
  const CudaContext& context = device_.context();
  context.make_current();
  context.check(context.driver().memcpy_async(reinterpret_cast<CUdeviceptr>(host_),
                                              reinterpret_cast<CUdeviceptr>(data_), bytes_, device_.download_stream()),
                "enqueueing the copy of results");
}

}  // namespace rp
