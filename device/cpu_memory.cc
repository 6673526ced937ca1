#include "device/cpu_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "common/system/core_dump.h"
#include "common/system/page_population.h"
#include "common/text.h"
#include "hoststore/boundary.h"
#include "hoststore/memory/memory_limit.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

std::uint64_t physical_memory() {
  return static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

// Populates the memory in pieces, because each call holds a lock of the process that other threads
// need to map and unmap memory.
int provide_pages(std::byte* data, std::uint64_t bytes) {
  constexpr std::uint64_t kPiece = std::uint64_t{16} << 20;
  (void)madvise(data, bytes, MADV_HUGEPAGE);  // only a hint: pages of 4 KiB work, too
  for (std::uint64_t at = 0; at < bytes; at += kPiece) {
    const int error = populate_pages(data + at, std::min(kPiece, bytes - at), PageAccess::kWrite);
    if (error != 0) return error;
  }
  return 0;
}

// Maps memory and populates its pages. Returns 0, or an errno if nothing was mapped.
int map_pages(std::uint64_t bytes, std::byte*& data) {
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return errno;
  keep_out_of_core_dump(mapped, bytes);
  const int error = provide_pages(static_cast<std::byte*>(mapped), bytes);
  if (error != 0) {
    munmap(mapped, bytes);
    return error;
  }
  data = static_cast<std::byte*>(mapped);
  return 0;
}

}  // namespace

CpuMemory::CpuMemory() : range_bytes_(physical_memory()) {
  const auto reserve = [this] {
    return mmap(nullptr, range_bytes_ + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  };
  void* range = reserve();
  // Under valgrind, fewer addresses are left. grow_for() reports it if they are not enough.
  constexpr int kMaxHalvings = 6;
  for (int i = 0; range == MAP_FAILED && i < kMaxHalvings; ++i) {
    range_bytes_ = align_up(range_bytes_ / 2, kHugePage);
    range = reserve();
  }
  if (range == MAP_FAILED) {
    throw Error(ExitCode::kNoResource,
                cat("cannot reserve ", bytes_text(range_bytes_),
                    " of addresses for a worker's memory: ", errno_text(errno), "; raise `ulimit -v`"));
  }
  keep_out_of_core_dump(range, range_bytes_ + kHugePage);
  range_ = static_cast<std::byte*>(range);
  base_ = reinterpret_cast<std::byte*>(align_up(reinterpret_cast<std::uintptr_t>(range), kHugePage));
}

CpuMemory::~CpuMemory() {
  for (const PreparedBuffer& buffer : prepared_) munmap(buffer.data, buffer.bytes);
  munmap(range_, range_bytes_ + kHugePage);
}

std::byte* CpuMemory::allocate_tensor(std::uint64_t bytes) {
  while (true) {
    if (const auto offset = book_.allocate(bytes, MemoryUse::kTensors)) return base_ + *offset;
    grow_for(bytes);
  }
}

void CpuMemory::free_tensor(std::byte* data) { book_.free(static_cast<std::uint64_t>(data - base_)); }

void CpuMemory::count_tensor_as(const std::byte* data, MemoryUse use) {
  if (is_tensor(data)) book_.count_as(static_cast<std::uint64_t>(data - base_), use);
}

void CpuMemory::grow_for(std::uint64_t bytes) {
  MutexLock lock(growing_);
  const std::uint64_t missing = align_up(book_.missing(bytes), kHugePage);
  if (missing == 0) return;  // another thread has lengthened the arena
  if (missing > range_bytes_ - bytes_) fail(bytes, MemoryUse::kTensors, ENOMEM);
  std::byte* const end = base_ + bytes_;
  int error = mprotect(end, missing, PROT_READ | PROT_WRITE) == 0 ? 0 : errno;
  if (error == 0) error = provide_pages(end, missing);
  if (error != 0) fail(bytes, MemoryUse::kTensors, error);
  bytes_ += missing;
  book_.extend(missing);
}

std::byte* CpuMemory::allocate_buffer(std::uint64_t bytes, MemoryUse use) {
  {
    MutexLock lock(preparing_);
    const auto prepared = std::ranges::find_if(
        prepared_, [&](const PreparedBuffer& buffer) { return buffer.bytes == bytes && buffer.use == use; });
    if (prepared != prepared_.end()) {
      std::byte* const data = prepared->data;
      prepared_.erase(prepared);
      return data;
    }
  }
  std::byte* data = nullptr;
  if (const int error = map_pages(bytes, data); error != 0) fail(bytes, use, error);
  book_.add_elsewhere(use, bytes);
  return data;
}

void CpuMemory::prepare_buffer(std::uint64_t bytes, MemoryUse use) {
  std::byte* data = nullptr;
  if (map_pages(bytes, data) != 0) return;
  book_.add_elsewhere(use, bytes);
  MutexLock lock(preparing_);
  prepared_.push_back({data, bytes, use});
}

void CpuMemory::free_buffer(std::byte* data, std::uint64_t bytes, MemoryUse use) {
  munmap(data, bytes);
  book_.remove_elsewhere(use, bytes);
}

void CpuMemory::fail(std::uint64_t bytes, MemoryUse use, int error) const {
  const BytesByUse by_use = book_.bytes_by_use();
  std::string has;
  for (const MemoryUse each : by_use.indices()) {
    if (by_use[each] > 0) has += cat(has.empty() ? "" : ", ", memory_use_name(each), " ", bytes_text(by_use[each]));
  }
  throw Error(ExitCode::kNoResource,
              cat("no memory for ", bytes_text(bytes), " of a worker's ", memory_use_name(use), ": ", errno_text(error),
                  "; the worker has ", has.empty() ? "nothing yet" : has, ", and ", bytes_text(available_memory()),
                  " are available on this machine; use fewer workers, fewer sequences a microbatch "
                  "(--num-microbatches), shorter sequences or smaller stages (--plan)"));
}

}  // namespace rp
