// common/system/futex.h
// Sleeps until a 32-bit word in memory changes. Works across processes if the word is in shared
// memory.
#pragma once

#include <atomic>
#include <cstdint>

namespace rp {

// Sleeps while *word == expected, for at most timeout_ns. May return early for no reason, so the
// caller must check the word again.
void futex_wait(const std::atomic<std::uint32_t>* word, std::uint32_t expected, std::int64_t timeout_ns);

// Like futex_wait(), but until a time of now_ns()'s clock (common/system/clock.h). INT64_MAX: no
// time limit.
void futex_wait_until(const std::atomic<std::uint32_t>* word, std::uint32_t expected, std::int64_t end_ns);

// Wakes all threads that sleep on the word.
void futex_wake_all(const std::atomic<std::uint32_t>* word);

}  // namespace rp
