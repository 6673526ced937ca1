#include "cuda/device_arena.h"

#include "common/text.h"

namespace rp {

DeviceArena::DeviceArena(const CudaContext& context, std::uint64_t bytes) : context_(context), bytes_(bytes) {
  context.make_current();
  CUdeviceptr base = 0;
  const CUresult result = context.driver().mem_alloc(&base, bytes);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    throw Error(
        ExitCode::kNoResource,
        cat("GPU ", context.uuid(), " has ", bytes_text(context.free_bytes()), " of memory free, and ",
            bytes_text(bytes), " are wanted; give less with --gpu-memory, or end what else runs on it (nvidia-smi)"));
  }
  context.check(result, "taking the GPU's memory");
  base_ = reinterpret_cast<std::byte*>(base);
  book_.extend(bytes / 4096 * 4096);
}

DeviceArena::~DeviceArena() { (void)context_.driver().mem_free(reinterpret_cast<CUdeviceptr>(base_)); }

std::byte* DeviceArena::allocate(std::uint64_t bytes, MemoryUse use) {
  const auto offset = book_.allocate(bytes, use);
  return offset ? base_ + *offset : nullptr;
}

void DeviceArena::free(std::byte* data) { book_.free(static_cast<std::uint64_t>(data - base_)); }

void DeviceArena::count_as(const std::byte* data, MemoryUse use) {
  if (holds(data)) book_.count_as(static_cast<std::uint64_t>(data - base_), use);
}

MemoryState DeviceArena::state() const {
  return {.limit_bytes = bytes_, .bytes_by_use = book_.bytes_by_use(), .largest_free_bytes = book_.largest_free()};
}

DeviceMemoryPeaks DeviceArena::peaks() const {
  DeviceMemoryPeaks peaks = book_.peaks();
  peaks.limit_bytes = bytes_;
  return peaks;
}

}  // namespace rp
