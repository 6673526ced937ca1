// hoststore/records/wait_record.h
// Records what a thread waits for and since when, in memory that other processes can read. Dumps
// print one line for each wait (docs/design/dumps.md). Byte format:
// docs/formats/fault_board.md#waits.
//
// Contract: each record has one writer, the thread that it belongs to. All processes may read it at
// any time, also after the writer's death. A reader never gets parts of two waits: a half-written
// record counts as no wait. Writing takes a few stores and a reading of the clock, and only a
// thread that is about to sleep does it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "common/shm_safe.h"

namespace rp {

// The kinds of waits. The comments name Wait::numbers[i] as [i].
enum class WaitKind : std::uint32_t {
  kNone = 0,
  // Waits of a worker for other processes.
  kWeights = 1,           // version [0] of weight group [1]
  kInputs = 2,            // microbatch [0] of the block of BlockKind [1], index [2], from worker [3]
  kGradientReleased = 3,  // gradient buffer of use [0] to be released [1] times
  // Waits of a worker for its own threads.
  kOwnInputBuffer = 4,
  kOwnWeights = 5,
  kOwnInputs = 6,  // microbatch [0]
  kOwnStageBuffer = 7,
  kOwnGradientBuffer = 8,
  // Waits of the coordinator.
  kCompletion = 9,    // worker [0] to complete `slot`
  kWorkerStart = 10,  // worker [0]
  kRoundPlace = 11,   // pipeline [0] has its maximum number of rounds in flight
  kOutputs = 12,      // the loss or outputs of round [0] of pipeline [1]; `slot` is the last slot that makes them
  kRoundEnd = 13,     // the end of round [0] of pipeline [1]; `slot` is the round's last slot
  kCommits = 14,      // of all accepted slots
  kUpdates = 15,      // version [0] of the weights of pipeline [1]
  kNorm = 16,         // the norm of the gradients of pipeline [0]
  kGradients = 17,    // the gradients for version [0] of the weights; [1] of [2] weight groups have theirs
  // Waits of a worker for other processes.
  kLossScale = 18,  // the loss scale of version [0] of the weights of pipeline [1]
  // Waits of a thread that has nothing to do.
  kNextTask = 19,
  kNextSlot = 20,
  kNextStep = 21,  // [0]: the current version of the weights
  // Waits of a worker for its own threads.
  kOwnCopies = 22,
  kOwnOutputs = 23,  // the download of earlier microbatches' outputs
  // Waits of the coordinator for its own threads.
  kStateSaved = 24,  // weight group [0], whose version before the update is being saved
  // Waits of the coordinator for other nodes.
  kNodeDecision = 25,   // the first node to make the call that the program makes here
  kNodeRound = 26,      // the losses of round [0] of pipeline [1]
  kNodeGradients = 27,  // the gradients for version [0] of the weights; [1] of [2] weight groups have theirs
  kNodeSquares = 28,    // their part of the gradient norm for version [0] of the weights
  kNodeWeights = 29,    // the parts of version [0] of the weights that they update; [1] of [2] weight groups are whole
  kNodeReceipt = 30,    // what this node has sent to be received
  kNodePlan = 31,       // the first node's plan for round [0] of pipeline [1]
  // Waits of a worker for other nodes.
  kNodeGpus = 32,  // the GPUs of other nodes to join, or to exchange a gradient
};
inline constexpr std::uint32_t kWaitKinds = 33;

struct Wait {
  WaitKind kind = WaitKind::kNone;
  std::int64_t slot = -1;  // the slot whose task waits; -1: none
  std::array<std::int64_t, 4> numbers{};
  std::int64_t since_ns = 0;  // CLOCK_MONOTONIC

  // True for a wait that other threads of the same process end.
  [[nodiscard]] bool is_for_own_thread() const {
    return (kind >= WaitKind::kOwnInputBuffer && kind <= WaitKind::kOwnGradientBuffer) ||
           (kind >= WaitKind::kOwnCopies && kind <= WaitKind::kStateSaved);
  }
  // True for a wait that only other nodes end.
  [[nodiscard]] bool is_for_other_nodes() const { return kind >= WaitKind::kNodeDecision; }
  // True for a wait of a thread that has nothing to do.
  [[nodiscard]] bool is_idle() const { return kind >= WaitKind::kNextTask && kind <= WaitKind::kNextStep; }
  // Returns the wait in words, for example "version 3 of weight group 7".
  [[nodiscard]] std::string text() const;
};

// Returns "round 7" or "evaluation 3", for example. Evaluations have numbers of their own
// (docs/formats/control.md#command).
[[nodiscard]] std::string round_text(std::int64_t round);

// A wait record as stored in the file. Has a cache line of its own. Writer: the thread that it
// belongs to.
struct WaitFormat {
  using ShmFormat = void;
  std::atomic<std::uint32_t> sequence;  // odd while the record is being written
  std::atomic<std::uint32_t> kind;
  std::atomic<std::int64_t> since_ns;
  std::atomic<std::int64_t> slot;
  std::array<std::atomic<std::int64_t>, 4> numbers;
  std::uint64_t reserved;
};
static_assert(sizeof(WaitFormat) == 64 && ShmSafe<WaitFormat>);

class TraceTrack;

// A view of a record. Without a record, all methods do nothing.
class WaitRecord {
 public:
  WaitRecord() = default;
  explicit WaitRecord(WaitFormat* record) : record_(record) {}

  // Returns a view of the same record that also adds each wait to a track of the trace once the
  // wait has ended. The track must have the same writer as the record.
  [[nodiscard]] WaitRecord traced_by(TraceTrack* track) const {
    WaitRecord traced(record_);
    traced.track_ = track;
    return traced;
  }

  // Records that the thread is about to sleep. Sets since_ns to the current time.
  void publish(const Wait& wait);
  // Records that the wait has ended. Does nothing if no wait is published. Must not be called for a
  // wait that failed, so that a dump shows that wait.
  void publish_none();
  // Calls publish() unless the same wait is published already. For loops around a condition.
  void publish_once(const Wait& wait) {
    if (!is_published(wait)) publish(wait);
  }

  // Returns nullopt if the thread does not wait, is just writing the record, or died while writing
  // it.
  [[nodiscard]] std::optional<Wait> observe() const;

 private:
  [[nodiscard]] bool is_published() const {
    return record_ != nullptr && record_->kind.load(std::memory_order_relaxed) != 0;
  }
  [[nodiscard]] bool is_published(const Wait& wait) const;
  void write(const Wait& wait);
  void trace() const;

  WaitFormat* record_ = nullptr;
  TraceTrack* track_ = nullptr;
};

}  // namespace rp
