// common/system/page_population.h
// Has the kernel provide pages of memory now instead of at their first use, where each costs a page fault.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rp {

enum class PageAccess { kRead, kWrite };

// Makes the pages of [data, data + bytes) present in this process's mapping, with zeros where they are new. Leaves what
// is in them; others may read and write them meanwhile. Returns 0, or the errno of the kernel that cannot: pages before
// the one that failed may be there. REQUIRES: `data` is the beginning of a page of a mapping that allows the access.
[[nodiscard]] int populate_pages(std::byte* data, std::uint64_t bytes, PageAccess access);

}  // namespace rp
