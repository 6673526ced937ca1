// hoststore/records/trace_journal.h
// What every thread of a run did and when, in one file that all its processes write to: what --trace is made of
// (docs/design/trace.md). Byte format: docs/formats/trace.md.
//
// The file has no name and is mapped piece by piece: a record is a few stores into memory of this process, a system
// call comes with each new piece only, and what a process wrote outlives it, however it dies.
//
// Contract: each track of a process has one writer at a time and pieces of its own; pieces are claimed by an atomic
// counter that all processes share. Reading is for the end, when nobody writes any more; at any earlier time it gives
// the records that were complete then.
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
// Pieces of a copy that follow each other faster are one record.
inline constexpr std::int64_t kLeastTracedGapNs = 20'000;
// Shorter waits are not worth a record.
inline constexpr std::int64_t kLeastTracedWaitNs = 10'000;

// What a record is of, and what its fields mean beyond their names.
enum class TraceKind : std::uint32_t {
  kNone = 0,  // no record: the end of what a track wrote to its piece
  // A worker's. `detail` of the first two: Phase; of blocks: BlockKind, and first_layer is the block's index.
  kTask = 1,            // numbers: round, step
  kCompute = 2,         // one microbatch of it; numbers: round, step
  kUploadInput = 3,     // numbers: bytes, then of the block where it was made: slot (-1: the coordinator), kind, index
  kUploadWeights = 4,   // numbers: bytes, version, weight group
  kDownloadOutput = 5,  // numbers: bytes
  kDownloadGradient = 6,  // numbers: bytes, weight group
  // Anybody's. `detail`: WaitKind; numbers: Wait::numbers.
  kWait = 7,
  // The coordinator's.
  kAcceptRound = 8,   // numbers: round, step, slots
  kCopyInputs = 9,    // numbers: round, step, bytes
  kCommit = 10,       // numbers: worker
  kUpdate = 11,       // numbers: step, version, weight group (-1: all, by a function)
  kAddGradient = 12,  // numbers: step, version, weight group
  kNorm = 13,         // numbers: step, version, weight group
  // A worker's: kCompute is what follows it.
  kRecompute = 14,  // the part of a backward's microbatch that does not need the gradient; as kCompute
};

// Lies in the file as it is.
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

// The tracks of a worker. From kWaits on: its threads' waits, in the order of WorkerThread.
enum class WorkerTrack : std::uint32_t {
  kCompute = 1,
  kUploadInputs = 2,
  kUploadWeights = 3,
  kDownload = 4,
  kWaits = 5,
  kDownloadGradients = 9,  // where they have a stream of their own
};
// The coordinator's; from kUpdates on: one for each pipeline.
enum class CoordinatorTrack : std::uint32_t { kCaller = 1, kCommit = 2, kUpdates = 3 };

// What the run is called in its trace. Cut to what there is room for.
struct TraceTitle {
  std::string program = {};
  std::string device = {};
  int num_workers = 1;
};

// First bytes of the file. Writer: its creator; of what is atomic: all.
struct TraceHeader {
  using ShmFormat = void;
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t record_bytes;
  std::uint64_t piece_bytes;
  std::atomic<std::uint64_t> num_pieces;  // claimed; piece i lies at kTraceHeaderBytes + i * piece_bytes
  std::atomic<std::uint32_t> is_full;     // 1: there was no room for a piece; records are missing from then on
  std::uint32_t num_workers;
  std::atomic<std::uint64_t> num_dropped;  // records that a stream had no place for
  std::array<char, 128> program;           // ends in a zero, as the next one
  std::array<char, 64> device;
};
static_assert(sizeof(TraceHeader) <= kTraceHeaderBytes && ShmSafe<TraceHeader>);

// First bytes of a piece; its records follow.
struct TracePieceHeader {
  using ShmFormat = void;
  std::uint64_t magic;    // 0: claimed by a process that died before it began
  std::uint32_t process;  // 0: the coordinator, 1 + w: worker w
  std::uint32_t track;
};
static_assert(sizeof(TracePieceHeader) == 16 && ShmSafe<TracePieceHeader>);
inline constexpr std::size_t kTraceRecordsPerPiece =
    (kTracePieceBytes - sizeof(TracePieceHeader)) / sizeof(TraceRecord);

// Owns the descriptor and the mapping of the header; must outlive its tracks.
class TraceJournal {
 public:
  // A new file without a name, on the disk of `directory`. Throws rp::Error kOutputFailed.
  [[nodiscard]] static TraceJournal create(const std::filesystem::path& directory, const TraceTitle& title);
  // Throws rp::Error kLauncherFailed if the file is no journal of this version.
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

  // For the reader. The place of a track's next records in the file, in order.
  struct Piece {
    std::uint32_t process = 0;
    std::uint32_t track = 0;
    std::uint64_t number = 0;
  };
  [[nodiscard]] std::vector<Piece> pieces() const;
  // The complete records of a piece. Throws rp::Error kOutputFailed if the file cannot be read.
  [[nodiscard]] std::vector<TraceRecord> records(const Piece& piece) const;

 private:
  friend class TraceTrack;
  TraceJournal(UniqueFd fd, TraceHeader* header) : fd_(std::move(fd)), header_(header) {}
  // A new piece in this process's memory; nullptr if the disk is full, which is said once in a run.
  [[nodiscard]] std::byte* claim_piece(std::uint32_t process, std::uint32_t track);

  UniqueFd fd_;
  TraceHeader* header_;
};

// One thread's, or one stream's, way into the journal. One writer at a time; what it adds has not begun before the
// record that it added last, or encloses it.
class TraceTrack {
 public:
  // Without a journal all does nothing.
  TraceTrack(TraceJournal* journal, std::uint32_t process, std::uint32_t track)
      : journal_(journal), process_(process), track_(track) {}
  TraceTrack(const TraceTrack&) = delete;
  TraceTrack& operator=(const TraceTrack&) = delete;
  ~TraceTrack();

  [[nodiscard]] bool is_on() const { return journal_ != nullptr; }
  // The time, where it is wanted.
  [[nodiscard]] std::int64_t now() const { return is_on() ? now_ns() : 0; }
  // REQUIRES: record.kind is not kNone.
  void add(const TraceRecord& record);
  // Of numbers[0] bytes. Makes the last record longer instead, if this one is a further part of the same, close behind
  // it.
  void add_part(const TraceRecord& record);
  // A wait that is over, if it was long enough.
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
  std::size_t num_records_ = 0;  // in the piece
};

}  // namespace rp
