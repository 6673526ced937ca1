// hoststore/records/fault_board.h
// Records what each process of a run is doing and why it died, in a file that is readable after its
// death. Byte format: docs/formats/fault_board.md.
//
// rp-launch creates the board before it starts any process, and every process inherits the
// descriptor, so that a fault is recorded even before the host store exists. Entry 0 belongs to the
// coordinator, entry 1 + w to worker w.
//
// Contract: only the process of an entry writes it, from any of its threads; all processes may read
// it. rp-launch clears an entry between the death of a process and the start of its replacement.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/phase.h"
#include "common/shm_safe.h"
#include "common/system/fd.h"
#include "hoststore/records/wait_record.h"

namespace rp {

enum class ProcessState : std::uint32_t {
  kNotStarted = 0,
  kStarting = 1,  // runs main() up to Session::start()
  kAttached = 2,  // has the host store mapped
  kIdle = 3,      // waits for a task
  kBusy = 4,      // runs a task
  kEnding = 5,    // was requested to end
};

enum class FaultKind : std::uint32_t {
  kNone = 0,
  kSignal = 1,     // code: the signal's number
  kException = 2,  // code: the exit code, 1
  kError = 3,      // an rp::Error; code: its exit code
  kAssertion = 4,  // a failed RP_ASSERT; the process aborts
};

// The task that a process works on. -1, or no phase: does not apply.
struct BoardTask {
  std::int64_t epoch = -1;
  std::int64_t slot = -1;
  std::int64_t round = -1;
  std::int64_t step = -1;
  std::optional<Phase> phase = std::nullopt;
  std::int32_t first_layer = -1;
  std::int32_t end_layer = -1;  // one past the last
  std::int32_t layer = -1;
  std::int32_t microbatch = -1;
  std::int32_t num_microbatches = -1;

  [[nodiscard]] const char* phase_text() const { return phase ? phase_name(*phase) : "no"; }
};

// The progress of the coordinator: how many slots were accepted from its caller, dispatched to
// workers and committed, and the newest round with the step that it belongs to. -1: none yet.
struct BoardProgress {
  std::int64_t accepted = 0;
  std::int64_t dispatched = 0;
  std::int64_t committed = 0;
  std::int64_t round = -1;
  std::int64_t step = -1;
  std::int64_t changed_ns = 0;  // time of the last change, CLOCK_MONOTONIC; 0: never
};

// The index of each thread's wait record in its process's entry.
enum class WorkerThread { kWeightUploader, kInputUploader, kStageRunner, kGradientDownloader };
inline constexpr std::size_t kNumWorkerThreads = 4;
enum class CoordinatorThread { kUser, kCommit, kUpdates };  // from kUpdates on, one for each pipeline

// Describes why a process died: its first fault. (FailureRecord: why a task failed, after which its process goes on.
// Failure of rp-launch: why the run failed.)
struct Fault {
  FaultKind kind = FaultKind::kNone;
  std::int32_t code = 0;
  std::int64_t time_ns = 0;  // CLOCK_MONOTONIC
  std::string message = {};
  std::string backtrace = {};  // one frame per line
};

inline constexpr const char* kFaultBoardName = "roundpipe-fault-board";  // of the anonymous file, as /proc shows it
inline constexpr std::size_t kFaultMessageBytes = 512;
inline constexpr std::size_t kFaultBacktraceBytes = 3072;
inline constexpr std::size_t kCrashNoticeBytes = 176;
inline constexpr std::size_t kLayerInputsBytes = 256;
inline constexpr std::size_t kFaultEntryBytes = 8192;
inline constexpr int kMaxBoardWaits = 32;
inline constexpr int kMaxBoardEntries = 257;

// The first bytes of the file. Writer: the process that creates the file, once.
struct FaultBoardHeader {
  using ShmFormat = void;
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t num_entries;
  std::uint64_t size_bytes;
  std::uint64_t entry_bytes;
};

// One entry as stored in the file. Entry i is at (1 + i) * kFaultEntryBytes. Writer of all fields but num_starts,
// debugger_has_left and node_wait_ms: the entry's process.
struct FaultEntryFormat {
  using ShmFormat = void;
  std::atomic<std::int32_t> pid;
  std::atomic<std::uint32_t> state;
  std::atomic<std::uint64_t> num_advances;
  std::atomic<std::int64_t> epoch;
  std::atomic<std::int64_t> slot;
  std::atomic<std::int32_t> phase;
  std::atomic<std::int32_t> first_layer;
  std::atomic<std::int32_t> end_layer;
  std::atomic<std::int32_t> layer;
  std::atomic<std::int32_t> microbatch;
  // The fault. Only the thread that sets `claimed` writes the plain fields; then it sets `ready`.
  std::atomic<std::uint32_t> claimed;
  std::atomic<std::uint32_t> ready;
  std::uint32_t kind;
  std::int32_t code;
  std::uint32_t message_bytes;
  std::uint32_t backtrace_bytes;
  std::atomic<std::uint32_t> num_starts;  // by rp-launch, while no process has the entry
  std::uint64_t address;
  std::int64_t time_ns;
  char message[kFaultMessageBytes];
  char backtrace[kFaultBacktraceBytes];
  // More fields of the task, and the coordinator's progress.
  std::atomic<std::int64_t> round;
  std::atomic<std::int64_t> step;
  std::atomic<std::int64_t> accepted;
  std::atomic<std::int64_t> dispatched;
  std::atomic<std::int64_t> committed;
  std::atomic<std::int32_t> num_microbatches;
  std::atomic<std::uint32_t> debugger_has_left;  // by rp-launch, for a process that has crashed
  std::atomic<std::int64_t> changed_ns;
  std::atomic<std::uint32_t> num_notices;  // number ever written; the newest is in crash_notices[(num_notices - 1) % 2]
  char crash_notices[2][kCrashNoticeBytes];
  std::atomic<std::uint32_t> node_wait_ms;  // by rp-launch, for the coordinator
  WaitFormat waits[kMaxBoardWaits];
  std::atomic<std::uint64_t> layer_inputs[kLayerInputsBytes / 8];  // text
};

// A process's view of one entry. May be copied; the FaultBoard that it comes from must outlive it.
class FaultBoardEntry {
 public:
  explicit FaultBoardEntry(FaultEntryFormat* entry) : entry_(entry) {}

  // For the entry's own process. All stores are relaxed: the values are only displayed, and no
  // other access depends on their order.
  void publish_start(pid_t pid);
  void publish_state(ProcessState state);
  // Counts an advance that no task shows: weights were updated, or a piece of a saved state was written.
  void publish_advance();
  void publish_task(const BoardTask& task);
  // Reports that a layer begins, which is an advance. The position alone would not show it: a layer has the same
  // position in its forward and in its backward. `inputs`: types and shapes of what the layer reads, as text for
  // people; cut at kLayerInputsBytes - 1.
  void publish_layer(std::int32_t layer, std::int32_t microbatch, std::string_view inputs);
  void publish_no_task();
  void publish_progress(const BoardProgress& progress);
  // Stores what a person should read if the process dies: what is lost, and from what to continue.
  // The text is cut at kCrashNoticeBytes. Only one thread may call this at a time.
  void publish_crash_notice(std::string_view text);
  // Returns the wait record of a thread, for its writer and for readers. If the entry has no record
  // for this thread, the result does nothing.
  [[nodiscard]] WaitRecord waits(int thread);
  [[nodiscard]] WaitRecord waits(WorkerThread thread) { return waits(static_cast<int>(thread)); }
  [[nodiscard]] WaitRecord waits(CoordinatorThread thread, int number = 0) {
    return waits(static_cast<int>(thread) + number);
  }

  // Records a fault if it is the first one of the process, and cuts texts that are too long.
  // Returns false, writing nothing, if there was a fault before. Async-signal-safe, as are the
  // steps below that it consists of.
  bool record_fault(FaultKind kind, int code, std::string_view message, std::string_view backtrace = {});

  // Returns true for the first caller in the process, which must then write its fault and publish
  // it.
  [[nodiscard]] bool claim_fault();
  // REQUIRES for the next three: claim_fault() returned true, and publish_fault() was not called.
  void set_fault(FaultKind kind, int code, const void* address);
  void append_message(std::string_view text);
  void append_backtrace(std::string_view text);
  // May be called twice, also by a watchdog. The record is valid from the first call on.
  void publish_fault();
  [[nodiscard]] bool observe_fault_ready() const;

  // For readers.
  [[nodiscard]] pid_t pid() const;
  [[nodiscard]] ProcessState state() const;
  // Returns how many layers were begun, how often weights of a group were updated, and how many pieces of saved states
  // were written.
  [[nodiscard]] std::uint64_t num_advances() const;
  // While the process runs, the fields may belong to two successive tasks. They are exact once it
  // is dead.
  [[nodiscard]] BoardTask task() const;
  // Returns the text of the layer's inputs; "" before the task's first layer. Exact once the process is dead.
  [[nodiscard]] std::string layer_inputs() const;
  [[nodiscard]] BoardProgress progress() const;
  // Returns the last crash notice of a dead process, or "".
  [[nodiscard]] std::string crash_notice() const;
  // Returns nullopt until a fault is completely written.
  [[nodiscard]] std::optional<Fault> fault() const;

  // For rp-launch, before it starts a process. Clears all but the count of starts, which it raises. REQUIRES: no
  // process writes this entry.
  void prepare_start();
  // Returns how many processes have had this entry.
  [[nodiscard]] std::uint32_t num_starts() const;

  // Says for how long the run of this node has only waited for other nodes; 0: it does not. Rounded down to
  // milliseconds. Writer: rp-launch, in the entry of the coordinator, which observes it.
  void publish_node_wait_ns(std::int64_t ns);
  [[nodiscard]] std::int64_t observe_node_wait_ns() const;

  // Lets a process end that has crashed and waits for a debugger. Writer: rp-launch; the process observes it.
  void publish_debugger_left();
  [[nodiscard]] bool observe_debugger_left() const;

 private:
  friend class FaultBoard;
  void clear();
  void store_layer_inputs(std::string_view text);

  FaultEntryFormat* entry_;
};

// Owns the file's descriptor and its mapping in this process.
class FaultBoard {
 public:
  // Creates an anonymous file, sealed against changes of its size. REQUIRES: 1 <= num_processes <=
  // kMaxBoardEntries. Throws rp::Error (kNoResource).
  [[nodiscard]] static FaultBoard create(int num_processes);
  // Entries may only be read if `fd` is open for reading only. Throws rp::Error (kLauncherFailed) if the file is not a
  // fault board of this version.
  [[nodiscard]] static FaultBoard attach(UniqueFd fd);

  FaultBoard(FaultBoard&& other) noexcept;
  FaultBoard& operator=(FaultBoard&& other) = delete;
  ~FaultBoard();

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] int num_entries() const { return num_entries_; }
  // REQUIRES: 0 <= index < num_entries().
  [[nodiscard]] FaultBoardEntry entry(int index) const;

 private:
  FaultBoard(UniqueFd fd, std::byte* base, std::size_t size_bytes);

  UniqueFd fd_;
  std::byte* base_;
  std::size_t size_bytes_;
  int num_entries_;
};

}  // namespace rp
