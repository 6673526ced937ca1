#include "hoststore/records/fault_board.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/system/clock.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr std::uint64_t kBoardMagic = 0x31544c5541465052;  // "RPFAULT1"
constexpr std::uint32_t kBoardVersion = 9;

static_assert(ShmSafe<FaultBoardHeader> && sizeof(FaultBoardHeader) == 32);
static_assert(ShmSafe<FaultEntryFormat> && sizeof(FaultEntryFormat) <= kFaultEntryBytes);
static_assert(offsetof(FaultEntryFormat, num_advances) == 8);
static_assert(offsetof(FaultEntryFormat, phase) == 32);
static_assert(offsetof(FaultEntryFormat, claimed) == 52);
static_assert(offsetof(FaultEntryFormat, kind) == 60);
static_assert(offsetof(FaultEntryFormat, address) == 80);
static_assert(offsetof(FaultEntryFormat, message) == 96);
static_assert(offsetof(FaultEntryFormat, backtrace) == 608);
static_assert(offsetof(FaultEntryFormat, round) == 3680);
static_assert(offsetof(FaultEntryFormat, num_notices) == 3736 && offsetof(FaultEntryFormat, crash_notices) == 3740);
static_assert(offsetof(FaultEntryFormat, num_microbatches) == 3720);
static_assert(offsetof(FaultEntryFormat, changed_ns) == 3728);
static_assert(offsetof(FaultEntryFormat, node_wait_ms) == 4092);
static_assert(offsetof(FaultEntryFormat, waits) == 4096);
static_assert(offsetof(FaultEntryFormat, layer_inputs) == 6144);

constexpr auto kRelaxed = std::memory_order_relaxed;

constexpr std::int32_t kNoPhase = -1;

template <std::size_t N>
void append(char (&to)[N], std::uint32_t& used_bytes, std::string_view text) {
  const std::size_t used = std::min<std::size_t>(used_bytes, N);
  const std::size_t added = std::min(text.size(), N - used);
  std::copy_n(text.begin(), added, to + used);
  used_bytes = static_cast<std::uint32_t>(used + added);
}

[[noreturn]] void throw_no_board(const char* step, int error_number) {
  const char* remedy = error_number == EFBIG ? "raise the limit on the size of files (ulimit -f)"
                       : error_number == EMFILE || error_number == ENFILE ? "raise the limit on open files (ulimit -n)"
                                                                          : "free some memory";
  throw Error(ExitCode::kNoResource,
              cat("cannot make the fault board (", step, ": ", errno_text(error_number), "); ", remedy));
}

std::byte* map_board(int fd, std::size_t size_bytes) {
  const bool may_write = (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR;
  void* base = mmap(nullptr, size_bytes, may_write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) throw_no_board("mmap", errno);
  return static_cast<std::byte*>(base);
}

}  // namespace

void FaultBoardEntry::publish_start(pid_t pid) {
  entry_->pid.store(pid, kRelaxed);
  publish_state(ProcessState::kStarting);
}

void FaultBoardEntry::publish_state(ProcessState state) {
  entry_->state.store(static_cast<std::uint32_t>(state), kRelaxed);
}

void FaultBoardEntry::publish_advance() { entry_->num_advances.fetch_add(1, kRelaxed); }

void FaultBoardEntry::publish_task(const BoardTask& task) {
  entry_->epoch.store(task.epoch, kRelaxed);
  entry_->slot.store(task.slot, kRelaxed);
  entry_->phase.store(task.phase ? static_cast<std::int32_t>(*task.phase) : kNoPhase, kRelaxed);
  entry_->first_layer.store(task.first_layer, kRelaxed);
  entry_->end_layer.store(task.end_layer, kRelaxed);
  entry_->round.store(task.round, kRelaxed);
  entry_->step.store(task.step, kRelaxed);
  entry_->num_microbatches.store(task.num_microbatches, kRelaxed);
  entry_->layer.store(task.layer, kRelaxed);
  entry_->microbatch.store(task.microbatch, kRelaxed);
  store_layer_inputs("");
}

void FaultBoardEntry::store_layer_inputs(std::string_view text) {
  text = text.substr(0, kLayerInputsBytes - 1);
  // The last word has at least one zero, which ends the text.
  for (std::size_t begin = 0; begin <= text.size(); begin += 8) {
    std::array<char, 8> bytes{};
    text.copy(bytes.data(), bytes.size(), begin);
    entry_->layer_inputs[begin / 8].store(std::bit_cast<std::uint64_t>(bytes), kRelaxed);
  }
}

std::string FaultBoardEntry::layer_inputs() const {
  std::string text;
  for (const std::atomic<std::uint64_t>& word : entry_->layer_inputs) {
    const auto bytes = std::bit_cast<std::array<char, 8>>(word.load(kRelaxed));
    text.append(bytes.data(), bytes.size());
  }
  return text.substr(0, text.find('\0'));
}

void FaultBoardEntry::publish_layer(std::int32_t layer, std::int32_t microbatch, std::string_view inputs) {
  store_layer_inputs(inputs);
  entry_->layer.store(layer, kRelaxed);
  entry_->microbatch.store(microbatch, kRelaxed);
  publish_advance();
}

void FaultBoardEntry::publish_no_task() { publish_task(BoardTask{}); }

void FaultBoardEntry::publish_progress(const BoardProgress& progress) {
  entry_->accepted.store(progress.accepted, kRelaxed);
  entry_->dispatched.store(progress.dispatched, kRelaxed);
  entry_->committed.store(progress.committed, kRelaxed);
  entry_->round.store(progress.round, kRelaxed);
  entry_->step.store(progress.step, kRelaxed);
  entry_->changed_ns.store(progress.changed_ns, kRelaxed);
}

// SYNC: release; pairs with crash_notice(). The count is published once the text is complete. If a
// process dies in between, the previous text stays valid, because it is in the other place.
void FaultBoardEntry::publish_crash_notice(std::string_view text) {
  const std::uint32_t count = entry_->num_notices.load(kRelaxed);
  char* const place = entry_->crash_notices[count % 2];
  const std::size_t length = std::min(text.size(), kCrashNoticeBytes);
  std::memcpy(place, text.data(), length);
  std::memset(place + length, 0, kCrashNoticeBytes - length);
  entry_->num_notices.store(count + 1, std::memory_order_release);
}

std::string FaultBoardEntry::crash_notice() const {
  const std::uint32_t count = entry_->num_notices.load(std::memory_order_acquire);
  if (count == 0) return "";
  const char* const place = entry_->crash_notices[(count - 1) % 2];
  return {place, strnlen(place, kCrashNoticeBytes)};
}

WaitRecord FaultBoardEntry::waits(int thread) {
  return thread < kMaxBoardWaits ? WaitRecord(&entry_->waits[thread]) : WaitRecord();
}

bool FaultBoardEntry::record_fault(FaultKind kind, int code, std::string_view message, std::string_view backtrace) {
  if (!claim_fault()) return false;
  set_fault(kind, code, nullptr);
  append_message(message);
  append_backtrace(backtrace);
  publish_fault();
  return true;
}

bool FaultBoardEntry::claim_fault() {
  std::uint32_t expected = 0;
  return entry_->claimed.compare_exchange_strong(expected, 1, std::memory_order_acq_rel);
}

void FaultBoardEntry::set_fault(FaultKind kind, int code, const void* address) {
  entry_->kind = static_cast<std::uint32_t>(kind);
  entry_->code = code;
  entry_->address = reinterpret_cast<std::uintptr_t>(address);
  entry_->time_ns = now_ns();
  entry_->message_bytes = 0;
  entry_->backtrace_bytes = 0;
}

void FaultBoardEntry::append_message(std::string_view text) { append(entry_->message, entry_->message_bytes, text); }

void FaultBoardEntry::append_backtrace(std::string_view text) {
  append(entry_->backtrace, entry_->backtrace_bytes, text);
}

// SYNC: release; pairs with observe_fault_ready(). The whole record must be written before this.
void FaultBoardEntry::publish_fault() { entry_->ready.store(1, std::memory_order_release); }

// SYNC: acquire; pairs with publish_fault().
bool FaultBoardEntry::observe_fault_ready() const { return entry_->ready.load(std::memory_order_acquire) == 1; }

pid_t FaultBoardEntry::pid() const { return entry_->pid.load(kRelaxed); }

ProcessState FaultBoardEntry::state() const { return static_cast<ProcessState>(entry_->state.load(kRelaxed)); }

std::uint64_t FaultBoardEntry::num_advances() const { return entry_->num_advances.load(kRelaxed); }

BoardTask FaultBoardEntry::task() const {
  const std::int32_t phase = entry_->phase.load(kRelaxed);
  return BoardTask{
      .epoch = entry_->epoch.load(kRelaxed),
      .slot = entry_->slot.load(kRelaxed),
      .round = entry_->round.load(kRelaxed),
      .step = entry_->step.load(kRelaxed),
      .phase = phase == kNoPhase ? std::nullopt : std::optional(static_cast<Phase>(phase)),
      .first_layer = entry_->first_layer.load(kRelaxed),
      .end_layer = entry_->end_layer.load(kRelaxed),
      .layer = entry_->layer.load(kRelaxed),
      .microbatch = entry_->microbatch.load(kRelaxed),
      .num_microbatches = entry_->num_microbatches.load(kRelaxed),
  };
}

BoardProgress FaultBoardEntry::progress() const {
  return BoardProgress{
      .accepted = entry_->accepted.load(kRelaxed),
      .dispatched = entry_->dispatched.load(kRelaxed),
      .committed = entry_->committed.load(kRelaxed),
      .round = entry_->round.load(kRelaxed),
      .step = entry_->step.load(kRelaxed),
      .changed_ns = entry_->changed_ns.load(kRelaxed),
  };
}

std::optional<Fault> FaultBoardEntry::fault() const {
  if (!observe_fault_ready()) return std::nullopt;
  // The lengths come from a process that may have been damaged, so they cannot be trusted.
  const std::size_t message_bytes = std::min<std::size_t>(entry_->message_bytes, kFaultMessageBytes);
  const std::size_t backtrace_bytes = std::min<std::size_t>(entry_->backtrace_bytes, kFaultBacktraceBytes);
  return Fault{
      .kind = static_cast<FaultKind>(entry_->kind),
      .code = entry_->code,
      .time_ns = entry_->time_ns,
      .message = std::string(entry_->message, message_bytes),
      .backtrace = std::string(entry_->backtrace, backtrace_bytes),
  };
}

void FaultBoardEntry::publish_node_wait_ns(std::int64_t ns) {
  entry_->node_wait_ms.store(static_cast<std::uint32_t>(std::min<std::int64_t>(ns / kNsPerMs, UINT32_MAX)), kRelaxed);
}
std::int64_t FaultBoardEntry::observe_node_wait_ns() const { return entry_->node_wait_ms.load(kRelaxed) * kNsPerMs; }

void FaultBoardEntry::publish_debugger_left() { entry_->debugger_has_left.store(1, kRelaxed); }
bool FaultBoardEntry::observe_debugger_left() const { return entry_->debugger_has_left.load(kRelaxed) != 0; }

std::uint32_t FaultBoardEntry::num_starts() const { return entry_->num_starts.load(kRelaxed); }

void FaultBoardEntry::prepare_start() {
  entry_->num_starts.fetch_add(1, kRelaxed);
  clear();
}

void FaultBoardEntry::clear() {
  entry_->ready.store(0, kRelaxed);
  entry_->claimed.store(0, kRelaxed);
  entry_->debugger_has_left.store(0, kRelaxed);
  publish_node_wait_ns(0);
  entry_->pid.store(0, kRelaxed);
  entry_->num_advances.store(0, kRelaxed);
  publish_state(ProcessState::kNotStarted);
  publish_no_task();
  publish_progress(BoardProgress{});
  for (int thread = 0; thread < kMaxBoardWaits; ++thread) waits(thread).publish_none();
}

FaultBoard FaultBoard::create(int num_processes) {
  RP_ASSERT(num_processes >= 1 && num_processes <= kMaxBoardEntries);
  UniqueFd fd(memfd_create(kFaultBoardName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) throw_no_board("memfd_create", errno);
  const std::size_t size_bytes = (1 + static_cast<std::size_t>(num_processes)) * kFaultEntryBytes;
  int failed = EINTR;
  while (failed == EINTR) failed = posix_fallocate(fd.get(), 0, static_cast<off_t>(size_bytes));
  if (failed != 0) throw_no_board("posix_fallocate", failed);
  // A file that no process can shorten never causes a SIGBUS in a reader.
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) throw_no_board("seal", errno);

  FaultBoard board(std::move(fd), nullptr, size_bytes);
  board.base_ = map_board(board.fd(), size_bytes);
  auto* header = reinterpret_cast<FaultBoardHeader*>(board.base_);
  *header = {.magic = kBoardMagic,
             .version = kBoardVersion,
             .num_entries = static_cast<std::uint32_t>(num_processes),
             .size_bytes = size_bytes,
             .entry_bytes = kFaultEntryBytes};
  board.num_entries_ = num_processes;
  for (int i = 0; i < num_processes; ++i) board.entry(i).clear();
  return board;
}

FaultBoard FaultBoard::attach(UniqueFd fd) {
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) throw_no_board("fstat", errno);
  const auto size_bytes = static_cast<std::size_t>(info.st_size);
  if (size_bytes < 2 * kFaultEntryBytes) {
    throw Error(ExitCode::kLauncherFailed,
                cat("the fault board has ", size_bytes,
                    " bytes, too few for one process; rp-launch and the program must come from the same build"));
  }
  FaultBoard board(std::move(fd), nullptr, size_bytes);
  board.base_ = map_board(board.fd(), size_bytes);
  const auto& header = *reinterpret_cast<const FaultBoardHeader*>(board.base_);
  const bool valid = header.magic == kBoardMagic && header.version == kBoardVersion &&
                     header.size_bytes == size_bytes && header.entry_bytes == kFaultEntryBytes &&
                     header.num_entries >= 1 && header.num_entries <= kMaxBoardEntries &&
                     (1 + std::size_t{header.num_entries}) * kFaultEntryBytes == size_bytes;
  if (!valid) {
    throw Error(ExitCode::kLauncherFailed,
                cat("the fault board is of another format (version ", header.version, ", this is ", kBoardVersion,
                    "); rp-launch and the program must come from the same build"));
  }
  board.num_entries_ = static_cast<int>(header.num_entries);
  return board;
}

FaultBoard::FaultBoard(UniqueFd fd, std::byte* base, std::size_t size_bytes)
    : fd_(std::move(fd)), base_(base), size_bytes_(size_bytes), num_entries_(0) {}

FaultBoard::FaultBoard(FaultBoard&& other) noexcept
    : fd_(std::move(other.fd_)),
      base_(std::exchange(other.base_, nullptr)),
      size_bytes_(other.size_bytes_),
      num_entries_(other.num_entries_) {}

FaultBoard::~FaultBoard() {
  if (base_ != nullptr) munmap(base_, size_bytes_);
}

FaultBoardEntry FaultBoard::entry(int index) const {
  RP_ASSERT(index >= 0 && index < num_entries_);
  std::byte* place = base_ + (1 + static_cast<std::size_t>(index)) * kFaultEntryBytes;
  return FaultBoardEntry(reinterpret_cast<FaultEntryFormat*>(place));
}

}  // namespace rp
