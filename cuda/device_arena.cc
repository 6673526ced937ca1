#include "cuda/device_arena.h"

#include "common/text.h"

namespace rp {

DeviceArena::DeviceArena(const CudaContext& context, std::uint64_t bytes) : context_(context), bytes_(bytes) {
  context.make_current();
  CUdeviceptr base = 0;
  const CUresult result = context.driver().mem_alloc(&base, bytes);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    throw Error(ExitCode::kNoResource,
                cat("GPU ", context.uuid(), " has ", bytes_text(context.free_bytes()), " of memory free, and ", bytes_text(bytes),
                    " are wanted; give less with --gpu-memory, or end what else runs on it (nvidia-smi)"));
  }
  context.check(result, "taking the GPU's memory");
  base_ = reinterpret_cast<std::byte*>(base);
  blocks_.extend(bytes);
}

DeviceArena::~DeviceArena() { (void)context_.driver().mem_free(reinterpret_cast<CUdeviceptr>(base_)); }

std::byte* DeviceArena::allocate(std::uint64_t bytes) {
  MutexLock lock(mutex_);
  const auto offset = blocks_.allocate(bytes);
  if (!offset) return nullptr;
  return base_ + *offset;
}

void DeviceArena::free(std::byte* data) {
  MutexLock lock(mutex_);
  blocks_.free(static_cast<std::uint64_t>(data - base_));
}

std::uint64_t DeviceArena::used_bytes() const {
  MutexLock lock(mutex_);
  return blocks_.used_bytes();
}

}  // namespace rp
