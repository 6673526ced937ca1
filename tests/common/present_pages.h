// tests/common/present_pages.h
// Counts the pages of a mapping that are in this process's page table. The next access to such a
// page causes no page fault.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/system/fd.h"

namespace rp {

constexpr std::uint64_t kTestPage = 4096;

// REQUIRES: `data` is the beginning of a page.
inline std::uint64_t num_present_pages(const void* data, std::uint64_t bytes) {
  std::vector<std::uint64_t> entries((bytes + kTestPage - 1) / kTestPage);
  // Not read with std::ifstream, which reads as much as its buffer holds: the kernel accepts only
  // reads of whole entries.
  const UniqueFd file(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  const auto wanted = static_cast<ssize_t>(entries.size() * sizeof(std::uint64_t));
  const auto at = static_cast<off_t>(reinterpret_cast<std::uintptr_t>(data) / kTestPage * sizeof(std::uint64_t));
  if (pread(file.get(), entries.data(), static_cast<std::size_t>(wanted), at) != wanted) return 0;
  constexpr std::uint64_t kPresent = std::uint64_t{1} << 63;
  return static_cast<std::uint64_t>(
      std::count_if(entries.begin(), entries.end(), [](std::uint64_t e) { return (e & kPresent) != 0; }));
}

}  // namespace rp
