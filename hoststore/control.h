// hoststore/control.h
// The control segment: everything by which the coordinator and the workers tell each other what to do and what is done.
// Byte format: docs/formats/control.md. Each field names its one writer.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "hoststore/boundary.h"
#include "hoststore/memory_use.h"
#include "hoststore/ring.h"
#include "hoststore/round_table.h"
#include "hoststore/sequence_word.h"
#include "hoststore/weight_stamp.h"

namespace rp {

inline constexpr std::uint64_t kControlMagic = 0x31305f4550495052;  // "RPIPE_01"
inline constexpr std::uint32_t kControlVersion = 10;
inline constexpr int kMaxWorkers = 64;
inline constexpr int kMaxLayers = 1024;
inline constexpr std::uint32_t kCommandRing = 8;
inline constexpr std::uint32_t kCompletionRing = 16;
inline constexpr std::uint32_t kFreeRing = 4096;

// The epoch that ends every worker.
inline constexpr std::uint64_t kEndEpoch = 0xffff;

// Which of the coordinator's and the workers' memory a block lies in: worker w's arena, or the coordinator's.
inline constexpr std::uint32_t kCoordinatorArena = kMaxWorkers;

enum class Phase : std::uint32_t { kForward, kFused, kBackward };
enum class RoundKind : std::uint16_t { kForwardBackward, kForward };
enum class RoundMode : std::uint16_t { kTrain, kEvaluate };

// Evaluations have round numbers of their own, from here on: they change nothing in what is trained afterwards.
inline constexpr std::uint64_t kFirstEvaluation = std::uint64_t{1} << 48;

[[nodiscard]] const char* phase_name(Phase phase);

// Coordinator -> worker. `slot` carries the epoch.
struct Command {
  using ShmFormat = void;
  // What a task does beyond its phase.
  enum Flag : std::uint32_t {
    kInputGradient = 1,      // the gradient of the model's inputs is wanted
    kGrainLayer = 2,         // backward: recompute from the saved input of each layer, one layer at a time
    kSavesForRecompute = 4,  // forward: a backward will recompute these layers
    kNoRandomNumbers = 8,    // the layers draw none: the generator need not be set for each
    kScalesLoss = 16,        // the loss is scaled: see LossScaleRecord
    kGivesLoss = 32,  // forward: the stage ends with the loss, which is evaluated in place of keeping the outputs
  };

  std::uint32_t pipeline = 0;
  Phase phase = Phase::kForward;
  RoundKind round_kind = RoundKind::kForwardBackward;
  RoundMode round_mode = RoundMode::kTrain;
  std::int32_t loss = 0;  // which of the pipeline's declared ones
  std::uint64_t slot = 0;
  std::uint64_t round = 0;            // since the start of training: the key of random numbers
  std::uint64_t step = 0;             // counted from 1
  std::uint64_t version = 0;          // of the weights
  std::uint64_t released_before = 0;  // what gradient writes wait for
  std::uint64_t first_event = 0;  // of this task's outputs: microbatch m is event first_event + m + 1 (without epoch)
  std::uint64_t table = 0;        // the round's table: its place in the coordinator's arena
  std::uint64_t table_bytes = 0;
  std::uint32_t layer_base = 0;  // the catalogue's number of the pipeline's layer 0
  std::uint32_t flags = 0;
  std::int32_t first_layer = 0;  // layers and boundaries are the pipeline's
  std::int32_t end_layer = 0;
  std::int32_t first_trained_layer = 0;  // no gradient goes below
  std::int32_t num_microbatches = 0;
  std::int32_t num_input_imports = 0;  // lists of tensors that other rounds made
  std::int32_t num_argument_imports = 0;
  std::array<std::uint64_t, kMaxLayers / 64 + 1> saved_boundaries{};  // bit b: the activation at boundary b is written

  [[nodiscard]] bool has(Flag flag) const { return (flags & flag) != 0; }
  // Whether the task ends with the loss.
  [[nodiscard]] bool runs_loss() const { return phase == Phase::kFused || has(kGivesLoss); }
  // Whether a backward or fused task gives the gradient at its first boundary.
  [[nodiscard]] bool wants_input_gradient() const {
    return first_layer > first_trained_layer || (first_layer == 0 && has(kInputGradient));
  }
  [[nodiscard]] bool saves(int boundary) const {
    return (saved_boundaries[static_cast<std::size_t>(boundary / 64)] >> (boundary % 64) & 1) != 0;
  }
  void save(int boundary) {
    saved_boundaries[static_cast<std::size_t>(boundary / 64)] |= std::uint64_t{1} << (boundary % 64);
  }
};
static_assert(ShmSafe<Command> && sizeof(Command) % 8 == 0);

enum class TaskOutcome : std::uint64_t { kDone, kFailed };

// How a task's compute went, where the executor knows: emulated devices do. Else zeros.
struct ComputeTimes {
  using ShmFormat = void;
  std::int64_t busy_ns = 0;
  std::int64_t exposed_ns = 0;   // it stood still, and only the worker's own copies were missing
  std::int64_t dispatch_ns = 0;  // likewise, and nothing was missing
};
static_assert(ShmSafe<ComputeTimes>);

// Worker -> coordinator, when everything that the task wrote is in place.
struct Completion {
  using ShmFormat = void;
  std::uint64_t slot = 0;  // with epoch
  TaskOutcome outcome = TaskOutcome::kDone;
  std::int64_t start_ns = 0;  // of the first microbatch's compute, CLOCK_MONOTONIC
  std::int64_t end_ns = 0;    // of the last one's
  std::int64_t wait_ns = 0;   // of that, between its computations
  ComputeTimes compute{};
  DeviceMemoryPeaks memory{};  // of the worker, so far
};
static_assert(ShmSafe<Completion>);

// Coordinator -> worker: a block of the worker's arena that nobody reads any more.
struct FreeRecord {
  using ShmFormat = void;
  std::uint64_t epoch = 0;
  std::uint64_t offset = 0;
};
static_assert(ShmSafe<FreeRecord>);

// Why a task failed. Written by its worker before the completion that says kFailed.
struct FailureRecord {
  using ShmFormat = void;
  static constexpr std::int64_t kLoss = -1;
  static constexpr std::int64_t kElsewhere = -2;  // neither in a layer nor in the loss
  std::int64_t layer = kElsewhere;
  std::int64_t microbatch = -1;  // -1: outside of any
  std::uint64_t code = 1;        // ExitCode of the program that does not catch it
  std::array<char, 2024> message{};
};
static_assert(sizeof(FailureRecord) == 2048 && ShmSafe<FailureRecord>);

// What a worker says of itself.
struct WorkerWords {
  using ShmFormat = void;
  SequenceWord events;  // writer: the worker, or its GPU. (epoch, number of the last event whose data is in place)
  SequenceWord acknowledged;  // writer: the worker, once it is ready for commands. The epoch that it follows, plus one
  SequenceWord heartbeat;     // writer: the worker's compute thread. Grows with every layer that it begins
  SequenceWord issued;  // writer: the worker's compute thread. Likewise, of the last event that its GPU was given to
  std::int64_t warm_up_ns = 0;  // writer: the worker's compute thread, before `acknowledged`. How long it warmed up
};
static_assert(sizeof(WorkerWords) == 40 && ShmSafe<WorkerWords>);

// CUDA IPC events by which a worker's GPU tells others' of its outputs (docs/design/signals.md): event n of the worker
// is recorded in event n mod kNumEvents. `held` is a consumer's: which event of each producer it is about to wait for,
// 0: none.
struct EventRing {
  using ShmFormat = void;
  static constexpr std::uint64_t kNumEvents = 64;
  SequenceWord num_made;  // writer: the worker. kNumEvents once all handles are there
  std::array<std::array<std::byte, 64>, kNumEvents> handles{};  // writer: the worker, before num_made
  std::array<std::atomic<std::uint64_t>, kMaxWorkers> held;     // writer: the worker's input uploader. By producer
};
static_assert(sizeof(EventRing) == 4616 && ShmSafe<EventRing>);

// What the losses of a pipeline's rounds are multiplied by, by the version of the weights that a round computes with.
// Four are enough: a version's tasks are committed before the version after the next one is made.
struct LossScaleRecord {
  using ShmFormat = void;
  static constexpr std::size_t kNumScales = 4;
  SequenceWord version;                     // writer: the coordinator. The newest one whose scale is known
  std::array<double, kNumScales> scales{};  // writer: the coordinator, before `version`. Of version v at v mod 4
};
static_assert(sizeof(LossScaleRecord) == 40 && ShmSafe<LossScaleRecord>);

// What all processes must agree on; the segment's first bytes. Writer: the coordinator, before anyone attaches.
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
  std::uint64_t arena_limit_bytes = 0;  // how far one activation arena may grow
  std::int64_t wait_timeout_ns = 0;
  std::uint16_t checks_consistency = 0;  // 1: with stamps, and checked round tables
  std::uint16_t is_sparse = 0;           // 1: an emulated run, whose arenas are longer than memory
  std::uint16_t weights_yield = 1;       // 1: to inputs, on a worker's link
  std::uint16_t gradients_yield = 1;     // 1: to outputs
};
static_assert(ShmSafe<ControlHeader>);

// Offsets of everything in the control segment, a function of the header's numbers.
struct ControlLayout {
  explicit ControlLayout(const ControlHeader& header);

  std::uint64_t epoch = 0;              // SequenceWord; writer: the coordinator
  std::uint64_t failed = 0;             // SequenceWord; writer: the coordinator. 1: the run failed, wait for its end
  std::uint64_t published = 0;          // SequenceWord per weight group; writer: the coordinator
  std::uint64_t gradient_released = 0;  // SequenceWord per use; writer: the coordinator
  std::uint64_t loss_scales = 0;        // LossScaleRecord per pipeline; writer: the coordinator
  std::uint64_t update_heartbeats =
      0;  // SequenceWord per pipeline; writer: the coordinator. Grows with every group of an update
  std::uint64_t worker_words = 0;  // WorkerWords per worker
  std::uint64_t event_rings = 0;   // EventRing per worker
  std::uint64_t commands = 0;      // ring per worker
  std::uint64_t completions = 0;   // ring per worker
  std::uint64_t frees = 0;         // ring per worker
  std::uint64_t failures = 0;      // FailureRecord per worker
  std::uint64_t stamps = 0;        // WeightStamp[kMaxCopies] per group; no bytes without checks_consistency
  std::uint64_t catalogue = 0;
  std::uint64_t bytes_before_catalogue = 0;
};

}  // namespace rp
