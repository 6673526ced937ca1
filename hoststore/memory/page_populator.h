// hoststore/memory/page_populator.h
// Populates pages of the host store ahead of their first use, in threads of its own, while the run starts: a page that
// is cleared and mapped in a step costs that step a page fault, and one thread clears a few GB a second at best.
//
// Owned by the process that maps the memory, which must outlive it. A page that is used before the threads reach it
// comes by a fault, as it would without them: the content of the pages does not change, and nothing waits for the
// threads except wait().
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
    std::byte* data = nullptr;  // the beginning of a page
    std::uint64_t bytes = 0;
    PageAccess access = PageAccess::kWrite;
  };

  // Begins at once, with the ranges in their order. A thread that the kernel refuses pages stops: the rest is left to
  // the other threads, and to faults.
  PagePopulator(std::vector<Range> ranges, int num_threads);
  ~PagePopulator();  // a piece that is under way is finished, the rest is left
  PagePopulator(const PagePopulator&) = delete;
  PagePopulator& operator=(const PagePopulator&) = delete;

  // Helps, and returns when every page is there: 0, or the errno of a kernel that refused some.
  int wait();

 private:
  static constexpr std::uint64_t kPieceBytes = std::uint64_t{32} << 20;

  void run();

  std::vector<Range> pieces_;
  // The next piece that no thread has taken. Relaxed: it only hands out numbers.
  std::atomic<std::size_t> next_piece_{0};
  std::atomic<int> error_{0};  // writers: the threads. Ordered by their joining
  std::vector<std::thread> threads_;
};

// How many threads populate memory fastest: clearing pages is bound by the bandwidth of the memory, which few cores use
// up.
[[nodiscard]] int population_threads(int usable_cores);

}  // namespace rp
