// hoststore/sequence_word.h
// A monotonic 64-bit counter with one writer, usually in shared memory. Threads of any process that
// maps it can wait until it reaches a value.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/shm_safe.h"
#include "common/system/clock.h"
#include "hoststore/ids.h"

namespace rp {

// The numbers of slots, events and completions contain the epoch in their high bits. So numbers of
// a later epoch are larger, and numbers of different epochs are never equal.
inline constexpr int kEpochShift = 48;

[[nodiscard]] constexpr std::uint64_t in_epoch(Epoch epoch, std::uint64_t number) {
  return epoch.value() << kEpochShift | number;
}
[[nodiscard]] constexpr Epoch epoch_of(std::uint64_t value) { return Epoch(value >> kEpochShift); }
[[nodiscard]] constexpr std::uint64_t number_of(std::uint64_t value) {
  return value & ((std::uint64_t{1} << kEpochShift) - 1);
}

// The conditions that end a wait before the word has reached its value.
struct WaitLimits {
  const std::atomic<bool>* stop;  // true once this process gives up: an epoch change, a failure, or the end of the run
  std::int64_t timeout_ns;        // counts only time in which this process runs (see Patience)
};

enum class WaitResult { kReached, kStopped, kTimedOut };

// Most words are in the control segment (docs/formats/control.md). Others are private to a process,
// as in device/stream_signal.h, cuda/host_calls.h and cuda/pinned_store.h. The declaration of each
// word names its writer.
class SequenceWord {
 public:
  using ShmFormat = void;

  // Sets the word to `value` and wakes all threads that wait for it.
  // SYNC: release; pairs with observe().
  void publish(std::uint64_t value);

  // Like publish(), but without a system call, for a word on which no thread sleeps.
  // SYNC: release; pairs with observe().
  void publish_quietly(std::uint64_t value) { value_.store(value, std::memory_order_release); }

  // SYNC: acquire; pairs with publish() and publish_quietly().
  [[nodiscard]] std::uint64_t observe() const { return value_.load(std::memory_order_acquire); }

  // Like observe(), as part of the single total order of all sequentially consistent accesses.
  // SYNC: seq_cst; pairs with publish() and publish_quietly().
  [[nodiscard]] std::uint64_t observe_in_order() const { return value_.load(std::memory_order_seq_cst); }

  // Sleeps until the word is at least `value` or one of the limits ends the wait.
  [[nodiscard]] WaitResult wait_at_least(std::uint64_t value, const WaitLimits& limits) const;

  // Wakes all threads that wait, so that they check WaitLimits::stop.
  void wake() const;

 private:
  std::atomic<std::uint64_t> value_;
};
static_assert(sizeof(SequenceWord) == 8 && ShmSafe<SequenceWord>);

}  // namespace rp
