// hoststore/control.h
// Defines the control segment: the shared memory through which the coordinator sends commands to
// the workers and the workers report completed tasks. Byte format: docs/formats/control.md. Each
// field names its one writer.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "common/phase.h"
#include "hoststore/boundary.h"
#include "hoststore/epoch_word.h"
#include "hoststore/ids.h"
#include "hoststore/memory_use.h"
#include "hoststore/ring.h"
#include "hoststore/round_table.h"
#include "hoststore/sequence_word.h"
#include "hoststore/weight_stamp.h"

namespace rp {

inline constexpr std::uint64_t kControlMagic = 0x31305f4550495052;  // "RPIPE_01"
inline constexpr std::uint32_t kControlVersion = 15;
inline constexpr int kMaxWorkers = 64;
inline constexpr int kMaxLayers = 1024;
inline constexpr std::uint32_t kCommandRing = 8;
inline constexpr std::uint32_t kCompletionRing = 16;
inline constexpr std::uint32_t kFreeRing = 4096;

// Every worker ends when the epoch word has this value.
inline constexpr Epoch kEndEpoch(0xffff);

// The number of the coordinator's arena. Arena w < kMaxWorkers belongs to worker w.
inline constexpr std::uint32_t kCoordinatorArena = kMaxWorkers;

enum class RoundKind : std::uint16_t { kForwardBackward, kForward };
enum class RoundMode : std::uint16_t { kTrain, kEvaluate };

// Evaluations are numbered separately, from this number on, so that they do not change the numbers
// of the rounds that are trained afterwards.
inline constexpr std::uint64_t kFirstEvaluation = std::uint64_t{1} << 48;

// Sent from the coordinator to a worker to start a task.
struct Command {
  using ShmFormat = void;
  // Options of a task in addition to its phase.
  enum Flag : std::uint32_t {
    kInputGradient = 1,      // compute the gradient of the model's inputs
    kGrainLayer = 2,         // backward: recompute one layer at a time, each from its saved input
    kSavesForRecompute = 4,  // forward: a backward task will recompute these layers
    kNoRandomNumbers = 8,    // the layers draw no random numbers, so the generator need not be set for each layer
    kScalesLoss = 16,        // the loss is scaled; see LossScaleRecord
    kGivesLoss = 32,         // forward: the stage ends with the loss, and its outputs are not kept
  };

  std::uint32_t pipeline = 0;
  Phase phase = Phase::kForward;
  RoundKind round_kind = RoundKind::kForwardBackward;
  RoundMode round_mode = RoundMode::kTrain;
  std::int32_t loss = 0;  // index among the losses that the pipeline declares
  SlotInEpoch slot{};
  std::uint64_t round = 0;            // counted from the start of training; the key of random numbers
  std::uint64_t step = 0;             // counted from 1
  Version version{};                  // of the weights
  std::uint64_t released_before = 0;  // gradients may be written once gradient_released is at least this
  EventNumber first_event{};          // the outputs of microbatch m have event first_event + m + 1
  std::uint64_t table = 0;            // offset of the round's table in the coordinator's arena
  std::uint64_t table_bytes = 0;
  CatalogueLayer layer_base{};  // of the pipeline's layer 0
  std::uint32_t flags = 0;
  std::int32_t first_layer = 0;  // layers and boundaries are numbered within the pipeline
  std::int32_t end_layer = 0;
  std::int32_t first_trained_layer = 0;  // no gradient is passed below this layer
  std::int32_t num_microbatches = 0;
  std::int32_t num_input_imports = 0;                                 // lists of input tensors that other rounds made
  std::int32_t num_argument_imports = 0;                              // lists of loss arguments that other rounds made
  std::array<std::uint64_t, kMaxLayers / 64 + 1> saved_boundaries{};  // bit b: the activation at boundary b is written

  [[nodiscard]] CatalogueLayer catalogue_layer(int layer) const { return layer_base + layer; }
  [[nodiscard]] bool has(Flag flag) const { return (flags & flag) != 0; }
  // Returns whether the task ends with the loss.
  [[nodiscard]] bool runs_loss() const { return phase == Phase::kFused || has(kGivesLoss); }
  // Returns whether a backward or fused task computes the gradient at its first boundary.
  [[nodiscard]] bool wants_input_gradient() const {
    return first_layer > first_trained_layer || (first_layer == 0 && has(kInputGradient));
  }
  [[nodiscard]] bool saves(int boundary) const { return (saved_boundaries[boundary / 64] >> (boundary % 64) & 1) != 0; }
  void save(int boundary) { saved_boundaries[boundary / 64] |= std::uint64_t{1} << (boundary % 64); }
};
static_assert(ShmSafe<Command> && sizeof(Command) % 8 == 0);

enum class TaskOutcome : std::uint64_t { kDone, kFailed };

// The time in which a task's compute was busy or idle. Only emulated devices measure it; otherwise
// all fields are zero.
struct ComputeTimes {
  using ShmFormat = void;
  std::int64_t busy_ns = 0;
  std::int64_t exposed_ns = 0;   // idle while only the worker's own copies were missing
  std::int64_t dispatch_ns = 0;  // idle while nothing was missing
};
static_assert(ShmSafe<ComputeTimes>);

// Sent from a worker to the coordinator when a task has ended. With kDone, everything that the task
// wrote is in place.
struct Completion {
  using ShmFormat = void;
  SlotInEpoch slot{};
  TaskOutcome outcome = TaskOutcome::kDone;
  std::int64_t start_ns = 0;  // start of the first microbatch's compute, CLOCK_MONOTONIC
  std::int64_t end_ns = 0;    // end of the last microbatch's compute
  std::int64_t wait_ns = 0;   // the part of this time in which the task waited between computations
  ComputeTimes compute{};
  DeviceMemoryPeaks memory{};  // of the worker since its start
};
static_assert(ShmSafe<Completion>);

// Sent from the coordinator to a worker: a block of the worker's arena that has no readers any
// more.
struct FreeRecord {
  using ShmFormat = void;
  Epoch epoch{};             // records of another epoch are ignored
  std::uint64_t offset = 0;  // in the worker's arena
};
static_assert(ShmSafe<FreeRecord>);

// Describes why a task failed: an exception in a layer or loss, which the coordinator throws as WorkerError. (Fault:
// why a process died. Failure of rp-launch: why the run failed.) Writer: the task's worker, in
// StageRunner::fail_task(), before the completion with kFailed. Read by task_failure() only.
struct FailureRecord {
  using ShmFormat = void;
  static constexpr std::int64_t kLoss = -1;
  static constexpr std::int64_t kElsewhere = -2;  // neither in a layer nor in the loss
  std::int64_t layer = kElsewhere;
  std::int64_t microbatch = -1;  // -1: outside of any microbatch
  std::uint64_t code = 1;        // ExitCode of a program that does not catch the error
  std::array<char, 2024> message{};
};
static_assert(sizeof(FailureRecord) == 2048 && ShmSafe<FailureRecord>);

// A block of a worker's arena that must be kept when an epoch begins.
struct LiveBlock {
  using ShmFormat = void;
  std::uint64_t offset = 0;  // in the worker's arena
  std::uint64_t bytes = 0;
};
static_assert(sizeof(LiveBlock) == 16 && ShmSafe<LiveBlock>);

// The counters through which a worker reports its progress, and what it needs to know of an epoch that begins.
struct WorkerWords {
  using ShmFormat = void;
  // Writer: the worker or its GPU; after the worker's death the coordinator, until another process takes its place. The
  // last event whose data is in place.
  NumberWord<EventInEpoch> events;
  // Writer: the worker, once it is ready for the commands of an epoch and nothing of earlier ones runs any more. That
  // epoch, plus one.
  SequenceWord acknowledged;
  SequenceWord heartbeat;  // writer: the worker's compute thread. Increases with every layer that it begins
  // Writer: the worker's compute thread. The last event whose copies are enqueued on the worker's GPU.
  NumberWord<EventInEpoch> issued;
  std::int64_t warm_up_ns = 0;  // writer: the worker's compute thread, before `acknowledged`. Duration of the warm-up
  // Writer of the rest: the coordinator, before it publishes that an epoch has begun.
  std::uint64_t takes_part = 0;   // the last epoch in which the worker takes part, plus one
  std::uint64_t live_blocks = 0;  // offset of LiveBlock[num_live_blocks] in the coordinator's arena
  std::uint64_t num_live_blocks = 0;
};
static_assert(sizeof(WorkerWords) == 64 && ShmSafe<WorkerWords>);

// CUDA IPC events through which a worker's GPU reports its outputs to other GPUs
// (docs/design/signals.md). Event n of the worker is recorded in CUDA event n mod kNumEvents.
// `held` is used by this worker as a consumer: for each producer, it stores the event that this
// worker is about to wait for, or 0.
struct EventRing {
  using ShmFormat = void;
  static constexpr std::uint64_t kNumEvents = 64;
  SequenceWord num_made;  // writer: the worker. kNumEvents more once each process of the worker has written all handles
  std::array<std::array<std::byte, 64>, kNumEvents> handles{};  // writer: the worker, before num_made
  std::array<std::atomic<std::uint64_t>, kMaxWorkers> held;     // writer: the input uploader. EventInEpoch, by producer
};
static_assert(sizeof(EventRing) == 4616 && ShmSafe<EventRing>);

// Names the NCCL communicator that the workers of one number of all nodes join, with Reduce::kNccl.
struct CommunicatorId {
  using ShmFormat = void;
  SequenceWord is_known;          // 1: `bytes` is written
  std::array<char, 128> bytes{};  // writer of both: the worker on the first node, the coordinator on the others
};
static_assert(sizeof(CommunicatorId) == 136 && ShmSafe<CommunicatorId>);

// The factors by which the losses of a pipeline's rounds are multiplied, by the version of the
// weights that a round computes with. Four are enough, because the tasks of a version are committed
// before the version after the next one is made.
struct LossScaleRecord {
  using ShmFormat = void;
  static constexpr std::size_t kNumScales = 4;
  NumberWord<Version> version;  // writer: the coordinator. The newest version whose scale is known
  // Writer: the coordinator, before `version`. The scale of version v is at v mod 4.
  std::array<double, kNumScales> scales{};

  [[nodiscard]] static std::size_t place_of(Version version) { return version.value() % kNumScales; }
};
static_assert(sizeof(LossScaleRecord) == 40 && ShmSafe<LossScaleRecord>);

// The first bytes of the segment: values on which all processes must agree. Writer: the
// coordinator, before any process attaches.
struct ControlHeader {
  using ShmFormat = void;
  std::uint64_t magic = kControlMagic;
  std::uint32_t version = kControlVersion;
  std::uint32_t num_workers = 0;
  std::uint64_t bytes = 0;  // of the segment
  std::array<std::uint64_t, 2> run_id{};
  std::uint64_t build_id = 0;
  std::uint64_t fingerprint = 0;  // of layers and losses, see pipeline/description/description.h
  std::uint64_t catalogue_offset = 0;
  std::uint64_t catalogue_bytes = 0;
  std::uint32_t num_layers = 0;
  std::uint32_t num_pipelines = 0;
  std::uint32_t num_groups = 0;
  std::uint32_t num_uses = 0;
  std::uint32_t stage_buffers = 2;  // 2 with prefetch, 1 without
  std::uint32_t threads_per_worker = 1;
  std::uint64_t arena_limit_bytes = 0;  // the maximum length of an activation arena
  std::int64_t wait_timeout_ns = 0;
  std::uint16_t checks_consistency = 0;  // 1: there are weight stamps, and round tables are checked
  std::uint16_t is_sparse = 0;           // 1: an emulated run, whose arenas have their length but no memory
  std::uint16_t weights_yield = 1;       // 1: weights yield to inputs on a worker's link
  std::uint16_t gradients_yield = 1;     // 1: gradients yield to outputs on a worker's link
};
static_assert(ShmSafe<ControlHeader>);

// The offsets of all parts of the control segment. They depend only on the numbers in the header.
struct ControlLayout {
  explicit ControlLayout(const ControlHeader& header);

  std::uint64_t epoch = 0;      // EpochWord; writer: the coordinator
  std::uint64_t failed = 0;     // SequenceWord; writer: the coordinator. 1: the run has failed and will be ended
  std::uint64_t published = 0;  // NumberWord<Version> per weight group; writer: the coordinator
  std::uint64_t gradient_released = 0;  // SequenceWord per use; writer: the coordinator
  std::uint64_t loss_scales = 0;        // LossScaleRecord per pipeline; writer: the coordinator
  // SequenceWord per pipeline; writer: the coordinator. Increases whenever a group's gradient is added, its norm
  // is summed, or it is updated.
  std::uint64_t update_heartbeats = 0;
  std::uint64_t worker_words = 0;   // WorkerWords per worker
  std::uint64_t event_rings = 0;    // EventRing per worker
  std::uint64_t communicators = 0;  // CommunicatorId per worker
  std::uint64_t commands = 0;       // ring per worker
  std::uint64_t completions = 0;    // ring per worker
  std::uint64_t frees = 0;          // ring per worker
  std::uint64_t failures = 0;       // FailureRecord per worker
  std::uint64_t stamps = 0;         // WeightStamp[kMaxCopies] per group; empty without checks_consistency
  std::uint64_t catalogue = 0;
};

}  // namespace rp
