// common/system/page_population.h
// Makes the kernel provide pages of memory now rather than at their first use, where each page
// costs a page fault.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rp {

enum class PageAccess { kRead, kWrite };

// Makes the pages of [data, data + bytes) present in this process's mapping; new pages contain
// zeros. Does not change the contents of pages, which other threads and processes may read and
// write during the call. Returns 0, or the errno of the kernel's refusal; then the pages before the
// one that failed may be present. REQUIRES: `data` is the beginning of a page of a mapping that
// allows the access.
[[nodiscard]] int populate_pages(std::byte* data, std::uint64_t bytes, PageAccess access);

}  // namespace rp
