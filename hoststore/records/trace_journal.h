// hoststore/records/trace_journal.h
// Records what every thread of a run did and when, in one file to which all processes of the run
// write. The trace of --trace is made from it (docs/design/trace.md). Byte format:
// docs/formats/trace.md.
//
// The file has no name and is mapped piece by piece. Adding a record takes a few stores into memory
// of this process; only a new piece needs a system call. What a process wrote outlives the process,
// however it dies.
//
// Contract: each track of a process has one writer at a time and pieces of its own. Processes claim
// pieces through an atomic counter that all of them share. The file should be read at the end, when
// no process writes any more; an earlier reader gets the records that are complete at that time.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "common/shm_safe.h"
#include "common/system/clock.h"
#include "common/system/fd.h"
#include "hoststore/records/wait_record.h"

namespace rp {

inline constexpr std::size_t kTraceHeaderBytes = 4096;
inline constexpr std::size_t kTracePieceBytes = std::size_t{128} << 10;
// Pieces of a copy with shorter gaps between them form one record.
inline constexpr std::int64_t kLeastTracedGapNs = 20'000;
// Shorter waits are not recorded.
inline constexpr std::int64_t kLeastTracedWaitNs = 10'000;

// The activity that a record describes, and what the record's fields mean beyond their names.
enum class TraceKind : std::uint32_t {
  kNone = 0,  // no record; marks the end of what a track wrote to its piece
  // Recorded by workers. `detail` is the Phase for the first two, and the BlockKind for copies of
  // blocks, whose first_layer is the block's index.
  kTask = 1,              // numbers: round, step
  kCompute = 2,           // one microbatch of a task; numbers: round, step
  kUploadInput = 3,       // numbers: bytes, and where the block was made: slot (-1: the coordinator), kind, index
  kUploadWeights = 4,     // numbers: bytes, version, weight group
  kDownloadOutput = 5,    // numbers: bytes
  kDownloadGradient = 6,  // numbers: bytes, weight group
  // Recorded by all processes. `detail`: WaitKind; numbers: Wait::numbers.
  kWait = 7,
  // Recorded by the coordinator.
  kAcceptRound = 8,   // numbers: round, step, slots
  kCopyInputs = 9,    // numbers: round, step, bytes
  kCommit = 10,       // numbers: worker
  kUpdate = 11,       // numbers: step, version, weight group (-1: all, by a function of the user)
  kAddGradient = 12,  // numbers: step, version, weight group
  kNorm = 13,         // numbers: step, version, weight group
  // Recorded by workers. The kCompute after it is the rest of the microbatch.
  kRecompute = 14,  // the part of a microbatch's backward that does not need the gradient; fields as for kCompute
};

// A record as stored in the file.
struct TraceRecord {
  using ShmFormat = void;
  TraceKind kind = TraceKind::kNone;  // written last
  std::uint32_t detail = 0;
  std::int64_t begin_ns = 0;  // CLOCK_MONOTONIC
  std::int64_t end_ns = 0;
  std::int64_t slot = -1;  // with epoch
  std::int32_t pipeline = -1;
  std::int32_t microbatch = -1;
  std::int32_t first_layer = -1;
  std::int32_t end_layer = -1;  // one past the last
  std::array<std::int64_t, 4> numbers{};
};
static_assert(sizeof(TraceRecord) == 80 && ShmSafe<TraceRecord>);

// The tracks of a worker. From kWaits on there is one track of waits for each of its threads, in
// the order of WorkerThread.
enum class WorkerTrack : std::uint32_t {
  kCompute = 1,
  kUploadInputs = 2,
  kUploadWeights = 3,
  kDownload = 4,
  kWaits = 5,
  kDownloadGradients = 9,  // if gradients have a stream of their own
};
// The tracks of the coordinator. From kUpdates on there is one for each pipeline.
enum class CoordinatorTrack : std::uint32_t { kCaller = 1, kCommit = 2, kUpdates = 3 };

// The names that describe the run in its trace. Names that are too long are cut.
struct TraceTitle {
  std::string program = {};
  std::string device = {};
  int num_workers = 1;
};

// The first bytes of the file. Writer: the process that creates the file; of the atomic fields, all
// processes.
struct TraceHeader {
  using ShmFormat = void;
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t record_bytes;
  std::uint64_t piece_bytes;
  std::atomic<std::uint64_t> num_pieces;  // claimed so far; piece i is at kTraceHeaderBytes + i * piece_bytes
  std::atomic<std::uint32_t> is_full;     // 1: there was no space for a piece; records are missing from then on
  std::uint32_t num_workers;
  std::atomic<std::uint64_t> num_dropped;  // records that were dropped because too many copies were under way
  std::array<char, 128> program;           // zero-terminated
  std::array<char, 64> device;             // zero-terminated
};
static_assert(sizeof(TraceHeader) <= kTraceHeaderBytes && ShmSafe<TraceHeader>);

// The first bytes of a piece. The piece's records follow.
struct TracePieceHeader {
  using ShmFormat = void;
  std::uint64_t magic;    // 0: claimed by a process that died before it wrote the header
  std::uint32_t process;  // 0: the coordinator, 1 + w: worker w
  std::uint32_t track;
};
static_assert(sizeof(TracePieceHeader) == 16 && ShmSafe<TracePieceHeader>);
inline constexpr std::size_t kTraceRecordsPerPiece =
    (kTracePieceBytes - sizeof(TracePieceHeader)) / sizeof(TraceRecord);

// Owns the descriptor and the mapping of the header; must outlive its tracks.
class TraceJournal {
 public:
  // Creates a file without a name, on the disk of `directory`. Throws rp::Error (kOutputFailed).
  [[nodiscard]] static TraceJournal create(const std::filesystem::path& directory, const TraceTitle& title);
  // Throws rp::Error (kLauncherFailed) if the file is not a journal of this version.
  [[nodiscard]] static TraceJournal attach(UniqueFd fd);

  TraceJournal(TraceJournal&& other) noexcept;
  TraceJournal& operator=(TraceJournal&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(header_, other.header_);
    return *this;
  }
  ~TraceJournal();

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] TraceTitle title() const;
  [[nodiscard]] bool is_full() const { return header_->is_full.load(std::memory_order_relaxed) != 0; }
  [[nodiscard]] std::uint64_t num_dropped() const { return header_->num_dropped.load(std::memory_order_relaxed); }
  void count_dropped() { header_->num_dropped.fetch_add(1, std::memory_order_relaxed); }

  // For readers: a piece of the file that contains records of one track. A track's pieces are in
  // the order in which they were written.
  struct Piece {
    std::uint32_t process = 0;
    std::uint32_t track = 0;
    std::uint64_t number = 0;
  };
  [[nodiscard]] std::vector<Piece> pieces() const;
  // Returns the complete records of a piece. Throws rp::Error (kOutputFailed) if the file cannot be
  // read.
  [[nodiscard]] std::vector<TraceRecord> records(const Piece& piece) const;

 private:
  friend class TraceTrack;
  TraceJournal(UniqueFd fd, TraceHeader* header) : fd_(std::move(fd)), header_(header) {}
  // Claims a piece and maps it into this process. Returns nullptr if the disk is full, which is
  // reported once per run.
  [[nodiscard]] std::byte* claim_piece(std::uint32_t process, std::uint32_t track);

  UniqueFd fd_;
  TraceHeader* header_;
};

// Appends the records of one thread or stream to the journal. Has one writer at a time. A record
// must not begin before the record that was added last, unless it encloses that record.
class TraceTrack {
 public:
  // If `journal` is nullptr, all methods do nothing.
  TraceTrack(TraceJournal* journal, std::uint32_t process, std::uint32_t track)
      : journal_(journal), process_(process), track_(track) {}
  TraceTrack(const TraceTrack&) = delete;
  TraceTrack& operator=(const TraceTrack&) = delete;
  ~TraceTrack();

  [[nodiscard]] bool is_on() const { return journal_ != nullptr; }
  // Returns the time, or 0 if there is no journal.
  [[nodiscard]] std::int64_t now() const { return is_on() ? now_ns() : 0; }
  // REQUIRES: record.kind is not kNone.
  void add(const TraceRecord& record);
  // Adds a copy of numbers[0] bytes. If it is a further part of the last record's copy and follows
  // it closely, lengthens the last record instead.
  void add_part(const TraceRecord& record);
  // Adds a wait that has ended, if it lasted at least kLeastTracedWaitNs.
  void add_wait(const Wait& wait);

 private:
  [[nodiscard]] bool turn_over();
  [[nodiscard]] TraceRecord* records() const {
    return reinterpret_cast<TraceRecord*>(piece_ + sizeof(TracePieceHeader));
  }
  static void publish(TraceRecord& place, TraceKind kind);

  TraceJournal* const journal_;
  const std::uint32_t process_;
  const std::uint32_t track_;
  std::byte* piece_ = nullptr;
  std::size_t num_records_ = 0;  // in the current piece
};

}  // namespace rp
