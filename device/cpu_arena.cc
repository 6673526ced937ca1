#include "device/cpu_arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "common/page_population.h"
#include "common/text.h"
#include "hoststore/boundary.h"
#include "hoststore/memory_limit.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

std::uint64_t physical_memory() {
  return static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

CpuArena::CpuArena() : range_bytes_(physical_memory()) {
  void* const range = mmap(nullptr, range_bytes_ + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) {
    throw Error(ExitCode::kNoResource, cat("cannot reserve ", bytes_text(range_bytes_), " of addresses for a worker's memory: ",
                                           errno_text(errno), "; raise `ulimit -v`"));
  }
  range_ = static_cast<std::byte*>(range);
  base_ = reinterpret_cast<std::byte*>(align_up(reinterpret_cast<std::uintptr_t>(range), kHugePage));
}

CpuArena::~CpuArena() { munmap(range_, range_bytes_ + kHugePage); }

std::byte* CpuArena::allocate(std::uint64_t bytes, MemoryUse use) {
  while (true) {
    if (const auto offset = book_.allocate(bytes, use)) return base_ + *offset;
    grow_for(bytes, use);
  }
}

void CpuArena::free(std::byte* data) { book_.free(static_cast<std::uint64_t>(data - base_)); }

void CpuArena::count_as(const std::byte* data, MemoryUse use) {
  if (holds(data)) book_.count_as(static_cast<std::uint64_t>(data - base_), use);
}

void CpuArena::grow_for(std::uint64_t bytes, MemoryUse use) {
  MutexLock lock(growing_);
  const std::uint64_t missing = align_up(book_.missing(bytes), kHugePage);
  if (missing == 0) return;  // another thread has lengthened it
  if (missing > range_bytes_ - bytes_) fail(bytes, use, ENOMEM);
  std::byte* const end = base_ + bytes_;
  if (mprotect(end, missing, PROT_READ | PROT_WRITE) != 0) fail(bytes, use, errno);
  (void)madvise(end, missing, MADV_HUGEPAGE);  // a hint: with pages of 4 KiB it works, too
  if (const int error = populate_pages(end, missing, PageAccess::kWrite); error != 0) fail(bytes, use, error);
  bytes_ += missing;
  book_.extend(missing);
}

void CpuArena::fail(std::uint64_t bytes, MemoryUse use, int error) const {
  const BytesByUse by_use = book_.bytes_by_use();
  std::string has;
  for (std::size_t i = 0; i < kMemoryUses; ++i) {
    if (by_use[i] > 0) has += cat(has.empty() ? "" : ", ", memory_use_name(static_cast<MemoryUse>(i)), " ", bytes_text(by_use[i]));
  }
  throw Error(ExitCode::kNoResource,
              cat("no memory for ", bytes_text(bytes), " of a worker's ", memory_use_name(use), ": ", errno_text(error), "; the worker has ",
                  has.empty() ? "nothing yet" : has, ", and ", bytes_text(available_memory()),
                  " are available on this machine; use fewer workers, fewer sequences a microbatch (--num-microbatches), shorter "
                  "sequences or smaller stages (--plan)"));
}

}  // namespace rp
