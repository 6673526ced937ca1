// hoststore/memory/memory_limit.h
// Measures how much more memory this process and its helpers may use.
#pragma once

#include <cstdint>
#include <string>

namespace rp {

// Returns the minimum of the memory that the machine has available and the memory that the control
// groups (v1 and v2) of this process still allow. File pages that the groups cache count as free,
// because the kernel drops them first. `root` is put in front of /proc and /sys, for tests.
[[nodiscard]] std::uint64_t available_memory(const std::string& root = "");

}  // namespace rp
