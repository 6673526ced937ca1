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

// A SequenceWord that counts in one of the types of ids.h, such as the newest version of a weight group.
template <typename Number>
class NumberWord {
 public:
  using ShmFormat = void;

  void publish(Number value) { word_.publish(value.value()); }
  [[nodiscard]] Number observe() const { return Number(word_.observe()); }
  [[nodiscard]] Number observe_in_order() const { return Number(word_.observe_in_order()); }
  [[nodiscard]] WaitResult wait_at_least(Number value, const WaitLimits& limits) const {
    return word_.wait_at_least(value.value(), limits);
  }
  void wake() const { word_.wake(); }

  // The word for a device, which publishes value() of a number.
  [[nodiscard]] SequenceWord& word() { return word_; }

 private:
  SequenceWord word_;
};
static_assert(sizeof(NumberWord<Version>) == 8 && ShmSafe<NumberWord<Version>>);

}  // namespace rp
