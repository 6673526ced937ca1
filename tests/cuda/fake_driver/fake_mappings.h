// tests/cuda/fake_driver/fake_mappings.h
// Reads what the kernel reports about a range of this process's addresses.
#pragma once

#include <cstdint>

namespace rp::test {

struct MappedRange {
  bool is_mapped = false;    // all of it is readable
  bool is_writable = false;  // all of it is writable
  std::uint64_t device = 0;  // device of the file that the first byte belongs to
  std::uint64_t inode = 0;   // inode of that file; 0: no file
  std::uint64_t offset = 0;  // of the first byte in that file
};

[[nodiscard]] MappedRange mapped_range(std::uintptr_t begin, std::uintptr_t end);

}  // namespace rp::test
