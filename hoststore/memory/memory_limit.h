// hoststore/memory/memory_limit.h
// Measures how much more memory the machine and the control groups of this process allow.
#pragma once

#include <cstdint>
#include <string>

namespace rp {

// Returns the minimum of the memory that the machine has available and the memory that the control
// groups (v1 and v2) of this process still allow. The groups' cached file pages count as free,
// because the kernel drops them first. Tests set `root`, which is prepended to /proc and /sys.
[[nodiscard]] std::uint64_t available_memory(const std::string& root = "");

}  // namespace rp
