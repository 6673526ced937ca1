// hoststore/records/wait_record.h
// What a thread waits for and since when, where other processes can read it: the lines of a dump
// (docs/design/dumps.md). Byte format: docs/formats/fault_board.md#waits.
//
// Contract: each record has one writer, the thread that it belongs to; everybody reads, at any time, also after the
// writer's death. A reader never gets parts of two waits: what is half-written counts as no wait. Writing is a few
// stores and a look at the clock, and only done by a thread that is about to sleep.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "common/shm_safe.h"

namespace rp {

// What can be waited for, and what Wait::numbers then mean.
enum class WaitKind : std::uint32_t {
  kNone = 0,
  // A worker's, for other processes.
  kWeights = 1,           // version [0] of weight group [1]
  kInputs = 2,            // microbatch [0] of the block of BlockKind [1], index [2], from worker [3]
  kGradientReleased = 3,  // gradient buffer of use [0] to be released [1] times
  // A worker's, for its own threads.
  kOwnInputBuffer = 4,
  kOwnWeights = 5,
  kOwnInputs = 6,  // microbatch [0]
  kOwnStageBuffer = 7,
  kOwnGradientBuffer = 8,
  // The coordinator's.
  kCompletion = 9,    // worker [0] to complete `slot`
  kWorkerStart = 10,  // worker [0]
  kRoundPlace = 11,   // pipeline [0] has as many rounds in flight as it may
  kOutputs = 12,      // of round [0] of pipeline [1]; `slot` is the last one
  kRoundEnd = 13,     // likewise
  kCommits = 14,      // of everything accepted
  kUpdates = 15,      // version [0] of the weights of pipeline [1]
  kNorm = 16,         // of the gradients of pipeline [0]
  kGradients = 17,    // that version [0] is made of; [1] of [2] weight groups have theirs
  // A worker's, for other processes.
  kLossScale = 18,  // of version [0] of the weights of pipeline [1]
  // Of a thread with nothing to do.
  kNextTask = 19,
  kNextSlot = 20,
  kNextStep = 21,  // [0]: the version that is there
  // A worker's, for its own threads.
  kOwnCopies = 22,
  kOwnOutputs = 23,  // of earlier microbatches to be downloaded
  // The coordinator's, for its own threads.
  kStateSaved = 24,  // weight group [0], whose version before the update is being saved
};
inline constexpr std::uint32_t kWaitKinds = 25;

struct Wait {
  WaitKind kind = WaitKind::kNone;
  std::int64_t slot = -1;  // whose task waits; -1: none
  std::array<std::int64_t, 4> numbers{};
  std::int64_t since_ns = 0;  // CLOCK_MONOTONIC

  // What threads of the same process do.
  [[nodiscard]] bool is_for_own_thread() const {
    return (kind >= WaitKind::kOwnInputBuffer && kind <= WaitKind::kOwnGradientBuffer) || kind >= WaitKind::kOwnCopies;
  }
  // Waits of a thread that has nothing to do.
  [[nodiscard]] bool is_idle() const { return kind >= WaitKind::kNextTask && kind <= WaitKind::kNextStep; }
  // "version 3 of weight group 7".
  [[nodiscard]] std::string text() const;
};

// "round 7", "evaluation 3": those without gradients have numbers of their own (docs/formats/control.md#command).
[[nodiscard]] std::string round_text(std::int64_t round);

// 64 bytes: a cache line of its own. Writer: the thread.
struct WaitFormat {
  using ShmFormat = void;
  std::atomic<std::uint32_t> sequence;  // odd: being written
  std::atomic<std::uint32_t> kind;
  std::atomic<std::int64_t> since_ns;
  std::atomic<std::int64_t> slot;
  std::array<std::atomic<std::int64_t>, 4> numbers;
  std::uint64_t reserved;
};
static_assert(sizeof(WaitFormat) == 64 && ShmSafe<WaitFormat>);

class TraceTrack;

// A view of a record; without one, all does nothing.
class WaitRecord {
 public:
  WaitRecord() = default;
  explicit WaitRecord(WaitFormat* record) : record_(record) {}

  // The same record, whose waits also go to a track of the trace, once they are over. The track is its writer's.
  [[nodiscard]] WaitRecord traced_by(TraceTrack* track) const {
    WaitRecord traced(record_);
    traced.track_ = track;
    return traced;
  }

  // The thread is about to sleep. Takes the time itself.
  void publish(const Wait& wait);
  // It got what it waited for. Nothing if nothing is published. A wait that failed stays: a dump shows it.
  void publish_none();
  // publish() unless a wait is published: for loops around a condition.
  void publish_once(const Wait& wait) {
    if (!is_published()) publish(wait);
  }

  // nullopt: the thread does not wait, or is just writing, or died while it did.
  [[nodiscard]] std::optional<Wait> observe() const;

 private:
  [[nodiscard]] bool is_published() const {
    return record_ != nullptr && record_->kind.load(std::memory_order_relaxed) != 0;
  }
  void write(const Wait& wait);
  void trace() const;

  WaitFormat* record_ = nullptr;
  TraceTrack* track_ = nullptr;
};

}  // namespace rp
