#include "tests/cuda/fake_driver/fake_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <iterator>

#include "common/check.h"
#include "tests/cuda/fake_driver/fake_mappings.h"

namespace rp::test {

namespace {

constexpr std::uint64_t kPage = 4096;
// Set in the addresses by which the GPU accesses host memory. No address of a process has this bit.
constexpr CUdeviceptr kAlias = CUdeviceptr{1} << 60;

std::uint64_t whole_pages(std::uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

FakeMemory::~FakeMemory() {
  for (const auto& [context, pieces] : pieces_) {
    for (const auto& [address, piece] : pieces) {
      void* const memory = reinterpret_cast<void*>(address);
      if (piece.kind == Kind::kGpu) munmap(memory, piece.bytes);
      if (piece.kind == Kind::kHostAllocated) std::free(memory);
    }
  }
}

const FakeMemory::Piece* FakeMemory::find(CUcontext context, std::uintptr_t address, std::uint64_t bytes) const {
  const auto pieces = pieces_.find(context);
  if (pieces == pieces_.end()) return nullptr;
  auto next = pieces->second.upper_bound(address);
  if (next == pieces->second.begin()) return nullptr;
  const auto& [begin, piece] = *--next;
  return address - begin < piece.bytes && bytes <= piece.bytes - (address - begin) ? &piece : nullptr;
}

std::uint64_t FakeMemory::take_out(CUcontext context, const void* memory, Kind kind) {
  Pieces& pieces = pieces_[context];
  const auto found = pieces.find(reinterpret_cast<std::uintptr_t>(memory));
  if (found == pieces.end() || found->second.kind != kind) return 0;
  const std::uint64_t bytes = found->second.bytes;
  pieces.erase(found);
  return bytes;
}

CUresult FakeMemory::allocate(CUcontext context, CUdeviceptr* memory, std::uint64_t bytes) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > gpu_bytes_ - taken_bytes_) return CUDA_ERROR_OUT_OF_MEMORY;
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  RP_ASSERT(data != MAP_FAILED);
  taken_bytes_ += bytes;
  *memory = reinterpret_cast<CUdeviceptr>(data);
  pieces_[context].emplace(*memory, Piece{.bytes = bytes, .kind = Kind::kGpu});
  return CUDA_SUCCESS;
}

CUresult FakeMemory::free(CUcontext context, CUdeviceptr memory) {
  const std::uint64_t bytes = take_out(context, reinterpret_cast<void*>(memory), Kind::kGpu);
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  taken_bytes_ -= bytes;
  munmap(reinterpret_cast<void*>(memory), bytes);
  return CUDA_SUCCESS;
}

CUresult FakeMemory::allocate_host(CUcontext context, void** memory, std::uint64_t bytes) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  *memory = std::aligned_alloc(kPage, whole_pages(bytes));
  RP_ASSERT(*memory != nullptr);
  pieces_[context].emplace(reinterpret_cast<std::uintptr_t>(*memory),
                           Piece{.bytes = bytes, .kind = Kind::kHostAllocated});
  return CUDA_SUCCESS;
}

CUresult FakeMemory::free_host(CUcontext context, void* memory) {
  if (take_out(context, memory, Kind::kHostAllocated) == 0) return CUDA_ERROR_INVALID_VALUE;
  std::free(memory);
  return CUDA_SUCCESS;
}

CUresult FakeMemory::add(CUcontext context, void* memory, std::uint64_t bytes, unsigned flags) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  if (bytes == 0 || begin % kPage != 0 || bytes % kPage != 0) return CUDA_ERROR_INVALID_VALUE;
  const bool is_read_only = (flags & CU_MEMHOSTREGISTER_READ_ONLY) != 0;
  if (is_read_only && !registers_read_only_) return CUDA_ERROR_NOT_SUPPORTED;
  Pieces& pieces = pieces_[context];
  const auto next = pieces.lower_bound(begin + bytes);
  if (next != pieces.begin() && std::prev(next)->first + std::prev(next)->second.bytes > begin) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  const MappedRange access = mapped_range(begin, begin + bytes);
  if (!access.is_mapped || (!access.is_writable && !is_read_only)) return CUDA_ERROR_INVALID_VALUE;
  pieces.emplace(begin, Piece{.bytes = bytes, .kind = Kind::kRegistered, .is_read_only = is_read_only});
  return CUDA_SUCCESS;
}

CUresult FakeMemory::remove(CUcontext context, void* memory) {
  return take_out(context, memory, Kind::kRegistered) == 0 ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : CUDA_SUCCESS;
}

CUresult FakeMemory::device_address(CUcontext context, CUdeviceptr* device, void* memory) const {
  const Piece* const piece = find(context, reinterpret_cast<std::uintptr_t>(memory), 1);
  if (piece == nullptr || piece->kind == Kind::kGpu) return CUDA_ERROR_INVALID_VALUE;
  *device = reinterpret_cast<CUdeviceptr>(memory) | kAlias;
  return CUDA_SUCCESS;
}

CUresult FakeMemory::operand(CUcontext context, CUdeviceptr address, std::uint64_t bytes, bool is_target,
                             void** memory) const {
  *memory = reinterpret_cast<void*>(address & ~kAlias);
  const Piece* const piece = find(context, address & ~kAlias, bytes);
  if (piece == nullptr || (is_target && piece->is_read_only)) return CUDA_ERROR_INVALID_VALUE;
  return (address & kAlias) != 0 && piece->kind == Kind::kGpu ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult FakeMemory::word(CUcontext context, CUdeviceptr address, bool is_target, void** memory) const {
  if (address % sizeof(std::uint64_t) != 0) return CUDA_ERROR_INVALID_VALUE;
  const Piece* const piece = find(context, address & ~kAlias, sizeof(std::uint64_t));
  if (piece != nullptr && piece->kind != Kind::kGpu && (address & kAlias) == 0) return CUDA_ERROR_INVALID_VALUE;
  return operand(context, address, sizeof(std::uint64_t), is_target, memory);
}

std::uint64_t FakeMemory::registered_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [context, pieces] : pieces_) {
    for (const auto& [address, piece] : pieces) sum += piece.kind == Kind::kRegistered ? piece.bytes : 0;
  }
  return sum;
}

}  // namespace rp::test
