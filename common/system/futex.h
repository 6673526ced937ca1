// common/system/futex.h
// Sleep until a 32-bit word in memory changes; works across processes on shared memory.
#pragma once

#include <atomic>
#include <cstdint>

namespace rp {

// Sleeps while *word == expected, for at most timeout_ns. May return early for no reason: look at the word again.
void futex_wait(const std::atomic<std::uint32_t>* word, std::uint32_t expected, std::int64_t timeout_ns);

// The same, until a time of now_ns()'s clock (common/system/clock.h); INT64_MAX: without an end.
void futex_wait_until(const std::atomic<std::uint32_t>* word, std::uint32_t expected, std::int64_t end_ns);

// Wakes all who sleep on the word.
void futex_wake_all(const std::atomic<std::uint32_t>* word);

}  // namespace rp
