#include "tests/cuda/fake_driver/fake_mappings.h"

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string>

namespace rp::test {

MappedRange mapped_range(std::uintptr_t begin, std::uintptr_t end) {
  std::ifstream maps("/proc/self/maps");
  MappedRange range{.is_writable = true};
  std::uintptr_t seen = begin;
  for (std::string line; seen < end && std::getline(maps, line);) {
    std::uintptr_t from = 0, to = 0;
    std::uint64_t offset = 0, inode = 0;
    unsigned major = 0, minor = 0;
    char permissions[5] = {};
    const int num = std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s %" SCNx64 " %x:%x %" SCNu64, &from, &to,
                                permissions, &offset, &major, &minor, &inode);
    if (num != 7 || to <= seen) continue;
    if (from > seen || permissions[0] != 'r') break;
    if (seen == begin) {
      range.device = std::uint64_t{major} << 32 | minor;
      range.inode = inode;
      range.offset = offset + (begin - from);
    }
    range.is_writable = range.is_writable && permissions[1] == 'w';
    seen = to;
  }
  range.is_mapped = seen >= end;
  return range;
}

}  // namespace rp::test
