// hoststore/sequence_word.h
// A fact that other processes wait for: a monotonic 64-bit counter in shared memory with one writer.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "common/shm_safe.h"
#include "common/system/clock.h"

namespace rp {

// Numbers of slots, events and completions carry the epoch in their high bits, so that those of a later epoch are
// larger and those of another one are told apart.
inline constexpr int kEpochShift = 48;

[[nodiscard]] constexpr std::uint64_t in_epoch(std::uint64_t epoch, std::uint64_t number) {
  return epoch << kEpochShift | number;
}
[[nodiscard]] constexpr std::uint64_t epoch_of(std::uint64_t value) { return value >> kEpochShift; }
[[nodiscard]] constexpr std::uint64_t number_of(std::uint64_t value) {
  return value & ((std::uint64_t{1} << kEpochShift) - 1);
}

// What ends a wait besides its fact.
struct WaitLimits {
  const std::atomic<bool>* stop;  // this process gives up: an epoch change, a failure, an end
  std::int64_t timeout_ns;        // of the time in which this process runs (Patience)
};

enum class WaitResult { kReached, kStopped, kTimedOut };

// Lies in the control segment (docs/formats/control.md). The process that writes it is named where it is declared.
class SequenceWord {
 public:
  using ShmFormat = void;

  // SYNC: release; pairs with observe(). Wakes everybody who waits.
  void publish(std::uint64_t value);

  // The same for a word that nobody sleeps on: no system call.
  // SYNC: release; pairs with observe().
  void publish_quietly(std::uint64_t value) { value_.store(value, std::memory_order_release); }

  // SYNC: acquire; pairs with publish() and publish_quietly().
  [[nodiscard]] std::uint64_t observe() const { return value_.load(std::memory_order_acquire); }

  // Likewise, in the one order of all accesses that are sequentially consistent.
  // SYNC: seq_cst; pairs with publish() and publish_quietly().
  [[nodiscard]] std::uint64_t observe_in_order() const { return value_.load(std::memory_order_seq_cst); }

  // Sleeps until the word is at least `value`.
  [[nodiscard]] WaitResult wait_at_least(std::uint64_t value, const WaitLimits& limits) const;

  // Wakes everybody who waits, so that they look at their `stop`.
  void wake() const;

 private:
  std::atomic<std::uint64_t> value_;
};
static_assert(sizeof(SequenceWord) == 8 && ShmSafe<SequenceWord>);

}  // namespace rp
