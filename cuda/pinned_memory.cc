#include "cuda/pinned_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>

#include "common/check.h"

namespace rp {

PinnedMemory::~PinnedMemory() {
  MutexLock lock(mutex_);
  for (const auto& [data, piece] : pieces_) (void)context_.driver().mem_host_unregister(const_cast<std::byte*>(data));
}

CUresult PinnedMemory::register_pages(std::byte* data, std::uint64_t bytes, bool is_read_only) const {
  const CudaDriver& driver = context_.driver();
  constexpr unsigned kFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  if (!is_read_only) return driver.mem_host_register(data, bytes, kFlags);
  if (context_.attribute(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED) != 0) {
    const CUresult result = driver.mem_host_register(data, bytes, kFlags | CU_MEMHOSTREGISTER_READ_ONLY);
    if (result != CUDA_ERROR_NOT_SUPPORTED) return result;
  }
  // The driver asks the kernel for writable pages. Once they are registered, this process no longer
  // needs write access.
  if (mprotect(data, bytes, PROT_READ | PROT_WRITE) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  const CUresult result = driver.mem_host_register(data, bytes, kFlags);
  (void)mprotect(data, bytes, PROT_READ);
  return result;
}

std::string PinnedMemory::add(std::byte* data, std::uint64_t bytes, bool is_read_only) {
  RP_ASSERT(bytes > 0);
  try {
    context_.make_current();
  } catch (const Error& error) {
    return error.what();
  }
  CUresult result = register_pages(data, bytes, is_read_only);
  CUdeviceptr device = 0;
  if (result == CUDA_SUCCESS) {
    result = context_.driver().mem_host_get_device_pointer(&device, data, 0);
    if (result != CUDA_SUCCESS) (void)context_.driver().mem_host_unregister(data);
  }
  if (result != CUDA_SUCCESS) return cuda_result_text(context_.driver(), result);
  MutexLock lock(mutex_);
  pieces_.emplace(data, Piece{.bytes = bytes, .device = device});
  return {};
}

PinnedMemory::Pieces::const_iterator PinnedMemory::find(const std::byte* data) const {
  const auto next = pieces_.upper_bound(data);
  if (next == pieces_.begin()) return pieces_.end();
  const auto piece = std::prev(next);
  return data < piece->first + piece->second.bytes ? piece : pieces_.end();
}

PinnedMemory::Extent PinnedMemory::extent(const std::byte* data, std::uint64_t bytes) const {
  MutexLock lock(mutex_);
  const auto piece = find(data);
  if (piece != pieces_.end()) {
    return {std::min(bytes, piece->second.bytes - static_cast<std::uint64_t>(data - piece->first)), true};
  }
  const auto next = pieces_.upper_bound(data);
  if (next == pieces_.end() || next->first >= data + bytes) return {bytes, false};
  return {static_cast<std::uint64_t>(next->first - data), false};
}

CUdeviceptr PinnedMemory::device_address(const std::byte* data) const {
  MutexLock lock(mutex_);
  const auto piece = find(data);
  RP_ASSERT(piece != pieces_.end());
  return piece->second.device + static_cast<CUdeviceptr>(data - piece->first);
}

}  // namespace rp
