#include "hoststore/memory/page_populator.h"

#include <pthread.h>

#include <algorithm>
#include <system_error>

namespace rp {

PagePopulator::PagePopulator(const std::vector<Range>& ranges, int num_threads) {
  for (const Range& range : ranges) {
    for (std::uint64_t at = 0; at < range.bytes; at += kPieceBytes) {
      pieces_.push_back({range.data + at, std::min(kPieceBytes, range.bytes - at), range.access});
    }
  }
  const auto num = std::min(static_cast<std::size_t>(num_threads), pieces_.size());
  try {
    for (std::size_t i = 0; i < num; ++i) {
      threads_.emplace_back([this] {
        pthread_setname_np(pthread_self(), "rp-populate");
        run();
      });
    }
  } catch (const std::system_error&) {
    // If no more threads may be started, the existing ones and wait() do the work.
  }
}

PagePopulator::~PagePopulator() {
  next_piece_.store(pieces_.size(), std::memory_order_relaxed);
  (void)wait();
}

int PagePopulator::wait() {
  run();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  return error_.load(std::memory_order_relaxed);
}

void PagePopulator::run() {
  while (true) {
    const std::size_t number = next_piece_.fetch_add(1, std::memory_order_relaxed);
    if (number >= pieces_.size()) return;
    const Range& piece = pieces_[number];
    const int error = populate_pages(piece.data, piece.bytes, piece.access);
    if (error != 0) return error_.store(error, std::memory_order_relaxed);
  }
}

int population_threads(int usable_cores) { return std::clamp(usable_cores, 1, 16); }

}  // namespace rp
