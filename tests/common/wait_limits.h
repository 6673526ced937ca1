// tests/common/wait_limits.h
// Limits for waits that a test expects to end on their own.
#pragma once

#include <atomic>

#include "common/system/clock.h"
#include "hoststore/sequence_word.h"

namespace rp {

inline constexpr std::atomic<bool> kNeverStop{false};
inline constexpr WaitLimits kLong{&kNeverStop, 20 * kNsPerSecond};

}  // namespace rp
