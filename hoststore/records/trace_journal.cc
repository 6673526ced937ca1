#include "hoststore/records/trace_journal.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

#include "common/check.h"
#include "common/system/nameless_file.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr std::uint64_t kJournalMagic = 0x3130454341525452;  // "RTRACE01"
constexpr std::uint64_t kPieceMagic = 0x4543454950525452;    // "RTRPIECE"
constexpr std::uint32_t kJournalVersion = 1;
constexpr std::uint32_t kMaxTracedWorkers = 1024;

[[noreturn]] void throw_unwritable(const std::filesystem::path& directory, const char* what, int error) {
  throw Error(ExitCode::kOutputFailed,
              cat("cannot keep the records of --trace in the directory ", directory.string(), " (", what, ": ",
                  errno_text(error), "); choose a file on another disk, or leave --trace out"));
}

off_t piece_offset(std::uint64_t number) { return static_cast<off_t>(kTraceHeaderBytes + number * kTracePieceBytes); }

int reserve(int fd, off_t offset, std::size_t bytes) {
  int failed = 0;
  do {
    failed = posix_fallocate(fd, offset, static_cast<off_t>(bytes));
  } while (failed == EINTR);
  return failed;
}

std::byte* map(int fd, off_t offset, std::size_t bytes, int flags) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | flags, fd, offset);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

template <std::size_t N>
void set_text(std::array<char, N>& place, const std::string& text) {
  place.fill('\0');
  std::copy_n(text.data(), std::min(text.size(), N - 1), place.data());
}

}  // namespace

TraceJournal TraceJournal::create(const std::filesystem::path& directory, const TraceTitle& title) {
  UniqueFd fd = create_nameless_file(directory);
  if (!fd) throw_unwritable(directory, "create a file", errno);
  const int failed = reserve(fd.get(), 0, kTraceHeaderBytes);
  if (failed != 0) throw_unwritable(directory, "posix_fallocate", failed);
  auto* header = reinterpret_cast<TraceHeader*>(map(fd.get(), 0, kTraceHeaderBytes, 0));
  if (header == nullptr) throw_unwritable(directory, "mmap", errno);
  header->magic = kJournalMagic;
  header->version = kJournalVersion;
  header->record_bytes = sizeof(TraceRecord);
  header->piece_bytes = kTracePieceBytes;
  header->num_workers = static_cast<std::uint32_t>(title.num_workers);
  set_text(header->program, title.program);
  set_text(header->device, title.device);
  return {std::move(fd), header};
}

TraceJournal TraceJournal::attach(UniqueFd fd) {
  const Error strange(
      ExitCode::kLauncherFailed,
      "the journal of --trace is of another format; rp-launch and the program must come from the same build");
  if (lseek(fd.get(), 0, SEEK_END) < static_cast<off_t>(kTraceHeaderBytes)) throw strange;
  auto* header = reinterpret_cast<TraceHeader*>(map(fd.get(), 0, kTraceHeaderBytes, 0));
  if (header == nullptr) throw strange;
  TraceJournal journal(std::move(fd), header);
  const auto ends = [](const auto& text) { return std::ranges::find(text, '\0') != text.end(); };
  if (header->magic != kJournalMagic || header->version != kJournalVersion ||
      header->record_bytes != sizeof(TraceRecord) || header->piece_bytes != kTracePieceBytes ||
      header->num_workers > kMaxTracedWorkers || !ends(header->program) || !ends(header->device)) {
    throw strange;
  }
  return journal;
}

TraceJournal::TraceJournal(TraceJournal&& other) noexcept
    : fd_(std::move(other.fd_)), header_(std::exchange(other.header_, nullptr)) {}

TraceJournal::~TraceJournal() {
  if (header_ != nullptr) munmap(header_, kTraceHeaderBytes);
}

TraceTitle TraceJournal::title() const {
  return {.program = header_->program.data(),
          .device = header_->device.data(),
          .num_workers = static_cast<int>(header_->num_workers)};
}

std::byte* TraceJournal::claim_piece(std::uint32_t process, std::uint32_t track) {
  if (is_full()) return nullptr;
  const std::uint64_t number = header_->num_pieces.fetch_add(1, std::memory_order_relaxed);
  // Reserve the space first, because writing to a page that has no space on the disk raises SIGBUS.
  int failed = reserve(fd_.get(), piece_offset(number), kTracePieceBytes);
  std::byte* piece = failed == 0 ? map(fd_.get(), piece_offset(number), kTracePieceBytes, MAP_POPULATE) : nullptr;
  if (piece == nullptr) {
    if (failed == 0) failed = errno;
    if (header_->is_full.exchange(1, std::memory_order_relaxed) == 0) {
      std::fprintf(stderr, "roundpipe: warning: no room for more of the trace (%s): it ends here, the run goes on\n",
                   errno_text(failed).c_str());
    }
    return nullptr;
  }
  auto* header = reinterpret_cast<TracePieceHeader*>(piece);
  header->process = process;
  header->track = track;
  // SYNC: release; pairs with pieces() if both run in the same process.
  std::atomic_ref(header->magic).store(kPieceMagic, std::memory_order_release);
  return piece;
}

std::vector<TraceJournal::Piece> TraceJournal::pieces() const {
  std::vector<Piece> found;
  const std::uint64_t num_pieces = header_->num_pieces.load(std::memory_order_relaxed);
  for (std::uint64_t number = 0; number < num_pieces; ++number) {
    TracePieceHeader header{};
    if (pread(fd_.get(), &header, sizeof(header), piece_offset(number)) != sizeof(header)) break;
    if (header.magic == kPieceMagic)
      found.push_back({.process = header.process, .track = header.track, .number = number});
  }
  return found;
}

std::vector<TraceRecord> TraceJournal::records(const Piece& piece) const {
  std::vector<TraceRecord> records(kTraceRecordsPerPiece);
  const std::size_t bytes = records.size() * sizeof(TraceRecord);
  const auto offset = piece_offset(piece.number) + static_cast<off_t>(sizeof(TracePieceHeader));
  const ssize_t got = pread(fd_.get(), records.data(), bytes, offset);
  if (got < 0) throw Error(ExitCode::kOutputFailed, cat("cannot read the records of --trace: ", errno_text(errno)));
  records.resize(static_cast<std::size_t>(got) / sizeof(TraceRecord));
  const auto is_none = [](const TraceRecord& r) { return r.kind == TraceKind::kNone; };
  records.erase(std::find_if(records.begin(), records.end(), is_none), records.end());
  // A process that wrote out of bounds may have damaged records. Drop those whose times cannot be
  // used in computations.
  std::erase_if(records, [](const TraceRecord& r) { return r.begin_ns < 0 || r.end_ns < 0; });
  return records;
}

TraceTrack::~TraceTrack() {
  if (piece_ != nullptr) munmap(piece_, kTracePieceBytes);
}

bool TraceTrack::turn_over() {
  if (piece_ != nullptr) munmap(piece_, kTracePieceBytes);
  piece_ = journal_->claim_piece(process_, track_);
  num_records_ = 0;
  return piece_ != nullptr;
}

// SYNC: release; pairs with the end of the process that wrote the record, or with the event that
// stopped its writer. If the writer dies before this store, the record has no kind and counts as
// none.
void TraceTrack::publish(TraceRecord& place, TraceKind kind) {
  std::atomic_ref(place.kind).store(kind, std::memory_order_release);
}

void TraceTrack::add(const TraceRecord& record) {
  if (!is_on()) return;
  RP_ASSERT(record.kind != TraceKind::kNone);
  if ((piece_ == nullptr || num_records_ == kTraceRecordsPerPiece) && !turn_over()) return;
  TraceRecord& place = records()[num_records_];
  TraceRecord unpublished = record;
  unpublished.kind = TraceKind::kNone;
  place = unpublished;
  publish(place, record.kind);
  ++num_records_;
}

void TraceTrack::add_part(const TraceRecord& record) {
  TraceRecord* const last = piece_ != nullptr && num_records_ > 0 ? &records()[num_records_ - 1] : nullptr;
  const auto identity = [](const TraceRecord& r) {
    return std::tuple(r.kind, r.slot, r.pipeline, r.first_layer, r.numbers[1], r.numbers[2]);
  };
  const bool goes_on = last != nullptr && identity(*last) == identity(record);
  if (!goes_on || record.begin_ns - last->end_ns > kLeastTracedGapNs) return add(record);
  last->numbers[0] += record.numbers[0];
  last->end_ns = record.end_ns;
}

void TraceTrack::add_wait(const Wait& wait) {
  if (!is_on()) return;
  const std::int64_t end_ns = now_ns();
  if (end_ns - wait.since_ns < kLeastTracedWaitNs) return;
  add({.kind = TraceKind::kWait,
       .detail = static_cast<std::uint32_t>(wait.kind),
       .begin_ns = wait.since_ns,
       .end_ns = end_ns,
       .slot = wait.slot,
       .numbers = wait.numbers});
}

}  // namespace rp
