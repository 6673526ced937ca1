// hoststore/memory/page_populator.h
// Populates pages of the host store ahead of their first use, in background threads, while the run
// starts. A page that is first used in a step costs that step a page fault, which clears and maps
// it, and one thread clears only a few GB per second.
//
// Owned by the process that maps the memory, which must outlive this object. A page that is used
// before the threads reach it is populated by a page fault, as it would be without them. The
// contents of pages do not change, and no thread waits for these threads except in wait().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "common/system/page_population.h"

namespace rp {

class PagePopulator {
 public:
  struct Range {
    std::byte* data = nullptr;  // page-aligned
    std::uint64_t bytes = 0;
    PageAccess access = PageAccess::kWrite;
  };

  // Starts the threads, which populate the ranges in order. A thread stops if the kernel refuses it
  // pages; the remaining pages are left to the other threads and to page faults.
  PagePopulator(const std::vector<Range>& ranges, int num_threads);
  ~PagePopulator();  // finishes the pieces that are in progress and leaves the rest
  PagePopulator(const PagePopulator&) = delete;
  PagePopulator& operator=(const PagePopulator&) = delete;

  // Populates pieces in the calling thread, too, and returns when all pieces are finished: 0, or
  // the errno of a call that the kernel refused.
  int wait();

 private:
  static constexpr std::uint64_t kPieceBytes = std::uint64_t{32} << 20;

  void run();

  std::vector<Range> pieces_;
  // The next piece that no thread has taken. Relaxed, because it only hands out indices.
  std::atomic<std::size_t> next_piece_{0};
  std::atomic<int> error_{0};  // writers: the threads; joining them orders the accesses
  std::vector<std::thread> threads_;
};

// Returns the number of threads that populate memory fastest. Clearing pages is limited by the
// bandwidth of the memory, which a few cores can use up.
[[nodiscard]] int population_threads(int usable_cores);

}  // namespace rp
