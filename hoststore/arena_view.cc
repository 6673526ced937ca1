#include "hoststore/arena_view.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "common/system/core_dump.h"
#include "common/system/page_population.h"
#include "common/text.h"
#include "hoststore/boundary.h"
#include "roundpipe/error.h"

namespace rp {

ArenaView::ArenaView(Segment segment, std::uint64_t limit_bytes, bool is_sparse)
    : segment_(std::move(segment)), limit_bytes_(align_up(limit_bytes, kPieceBytes)), is_sparse_(is_sparse) {
  void* range = mmap(nullptr, limit_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) {
    throw Error(ExitCode::kNoResource, cat("cannot reserve ", bytes_text(limit_bytes_), " of addresses for ",
                                           segment_.purpose(), ": ", errno_text(errno), "; raise `ulimit -v`"));
  }
  base_ = static_cast<std::byte*>(range);
}

// One call for the whole range, so that no mapping of another thread can be placed in a part of it.
ArenaView::~ArenaView() { munmap(base_, limit_bytes_); }

std::byte* ArenaView::data(std::uint64_t offset, std::uint64_t bytes) {
  // SYNC: acquire; pairs with the release in map_until(), so the pages are mapped if the number
  // includes them.
  const std::uint64_t mapped = mapped_bytes_.load(std::memory_order_acquire);
  if (offset > mapped || bytes > mapped - offset) {
    MutexLock lock(mutex_);
    map_until(offset, bytes);
  }
  return base_ + offset;
}

void ArenaView::map_until(std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t mapped = mapped_bytes_.load(std::memory_order_relaxed);
  if (offset <= mapped && bytes <= mapped - offset) return;
  const std::uint64_t length = std::min(segment_.bytes(), limit_bytes_);
  if (offset > length || bytes > length - offset) {
    throw Error(ExitCode::kUserError,
                cat("an allocation of ", bytes, " bytes at byte ", offset, " of ", segment_.purpose(),
                    " ends beyond its ", length, " bytes: the host store is damaged"));
  }
  if (mmap(base_ + mapped, length - mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, segment_.fd(),
           static_cast<off_t>(mapped)) == MAP_FAILED) {
    throw Error(ExitCode::kNoResource, cat("cannot map ", bytes_text(length - mapped), " of ", segment_.purpose(), ": ",
                                           errno_text(errno), "; raise `ulimit -v` or vm.max_map_count"));
  }
  keep_out_of_core_dump(base_ + mapped, length - mapped);
  mapped_bytes_.store(length, std::memory_order_release);
}

std::uint64_t ArenaView::grow(std::uint64_t bytes) {
  MutexLock lock(mutex_);
  const std::uint64_t wanted = align_up(bytes, kPieceBytes);
  if (wanted > limit_bytes_) {
    throw Error(ExitCode::kNoResource,
                cat(segment_.purpose(), " would need ", bytes_text(bytes), ", but the budget is ",
                    bytes_text(limit_bytes_), "; use more microbatches, a shorter sequence or fewer workers"));
  }
  if (is_sparse_) {
    segment_.lengthen(wanted);
  } else {
    const std::uint64_t before = segment_.bytes();
    segment_.reserve(wanted);
    if (wanted > before) {
      map_until(before, wanted - before);
      // If this fails, page faults populate the pages.
      (void)populate_pages(base_ + before, wanted - before, PageAccess::kWrite);
    }
  }
  return wanted;
}

}  // namespace rp
