// tests/cuda/fake_driver/fake_mappings.h
// What the kernel says of a range of this process's addresses.
#pragma once

#include <cstdint>

namespace rp::test {

struct MappedRange {
  bool is_mapped = false;    // all of it, for reading
  bool is_writable = false;  // all of it
  std::uint64_t device = 0;  // of the file that the first byte is of
  std::uint64_t inode = 0;   // likewise; 0: of none
  std::uint64_t offset = 0;  // and where in the file that is
};

[[nodiscard]] MappedRange mapped_range(std::uintptr_t begin, std::uintptr_t end);

}  // namespace rp::test
