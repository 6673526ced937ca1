// hoststore/memory/memory_limit.h
// How much memory this process and its helpers may still take.
#pragma once

#include <cstdint>
#include <string>

namespace rp {

// The least of what the machine has available and what the memory control groups (v1 and v2) of this process leave;
// file pages that they cache count as free, since the kernel drops them first.
// `root` stands before /proc and /sys, for tests.
[[nodiscard]] std::uint64_t available_memory(const std::string& root = "");

}  // namespace rp
