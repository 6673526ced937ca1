#include "hoststore/sequence_word.h"

#include <algorithm>
#include <bit>

#include "common/system/futex.h"

namespace rp {

namespace {

// A futex has 32 bits, so a thread may fall asleep on a new value whose low half equals that of the
// old one. It may also miss that `stop` was set. In both cases it checks again after this time.
constexpr std::int64_t kSliceNs = 100 * kNsPerMs;

static_assert(std::endian::native == std::endian::little, "the low half of a word is its first four bytes");

const std::atomic<std::uint32_t>* low_half(const std::atomic<std::uint64_t>& word) {
  return reinterpret_cast<const std::atomic<std::uint32_t>*>(&word);
}

}  // namespace

void SequenceWord::publish(std::uint64_t value) {
  value_.store(value, std::memory_order_release);
  futex_wake_all(low_half(value_));
}

void SequenceWord::wake() const { futex_wake_all(low_half(value_)); }

WaitResult SequenceWord::wait_at_least(std::uint64_t value, const WaitLimits& limits) const {
  std::uint64_t present = observe();
  if (present >= value) return WaitResult::kReached;
  Patience patience(limits.timeout_ns);
  while (true) {
    if (limits.stop->load(std::memory_order_acquire)) return WaitResult::kStopped;
    const std::int64_t left = patience.left_ns();
    if (left <= 0) return WaitResult::kTimedOut;
    futex_wait(low_half(value_), static_cast<std::uint32_t>(present), std::min(left, kSliceNs));
    present = observe();
    if (present >= value) return WaitResult::kReached;
  }
}

}  // namespace rp
