#include "common/system/page_population.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace rp {

namespace {

// For kernels before 5.14. A page is written by an atomic OR with 0, so that no byte that another
// thread writes is lost.
void touch_pages(std::byte* data, std::uint64_t bytes, PageAccess access) {
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  for (std::uint64_t at = 0; at < bytes; at += page) {
    auto& byte = reinterpret_cast<unsigned char&>(data[at]);
    if (access == PageAccess::kRead) {
      (void)*static_cast<const volatile unsigned char*>(&byte);
    } else {
      std::atomic_ref<unsigned char>(byte).fetch_or(0, std::memory_order_relaxed);
    }
  }
}

}  // namespace

int populate_pages(std::byte* data, std::uint64_t bytes, PageAccess access) {
  if (bytes == 0) return 0;
  const int advice = access == PageAccess::kRead ? MADV_POPULATE_READ : MADV_POPULATE_WRITE;
  while (madvise(data, bytes, advice) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    const int error = errno;
    const bool is_known = madvise(data, 0, advice) == 0;
    if (error != EINVAL || is_known) return error;
    touch_pages(data, bytes, access);
    return 0;
  }
  return 0;
}

}  // namespace rp
