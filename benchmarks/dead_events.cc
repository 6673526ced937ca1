#include "benchmarks/dead_events.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include "benchmarks/forked.h"
#include "common/check.h"
#include "common/text.h"
#include "cuda/cuda_stream.h"
#include "cuda/pinned_memory.h"

namespace rp {

namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::size_t kTextBytes = 2000;

// Memory that the three processes share; zero at the start.
struct Board {
  // In a page that both processes on the GPU register.
  alignas(kPage) std::atomic<std::uint64_t> word;  // writer: the GPU, for the dying process
  // SYNC: release by the dying process; pairs with the acquire of the observer. `handle` is valid
  // from 1 on.
  alignas(kPage) std::atomic<int> progress;  // 1: the event exists, 2: all work is enqueued, -1: it failed
  std::atomic<int> exit_code;                // writer: the dying process, before progress -1
  CUipcEventHandle handle;                   // writer: the dying process
  std::array<char, kTextBytes> findings;     // writer: the observer; read when it has ended
};

struct BoardDeleter {
  void operator()(Board* board) const { munmap(board, sizeof(Board)); }
};

std::unique_ptr<Board, BoardDeleter> make_board() {
  void* const memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error(ExitCode::kNoResource, "no memory for what the processes share");
  return std::unique_ptr<Board, BoardDeleter>(static_cast<Board*>(memory));
}

bool is_about_a_word(DeadCase which) {
  return which == DeadCase::kWordBeforeCompletion || which == DeadCase::kWordAfterCompletion;
}
bool is_killed_after(DeadCase which) {
  return which == DeadCase::kAfterCompletion || which == DeadCase::kWordAfterCompletion;
}

void register_word(PinnedMemory& pinned, Board& board) {
  const std::string why = pinned.add(reinterpret_cast<std::byte*>(&board.word), kPage, false);
  if (!why.empty()) throw Error(ExitCode::kNoResource, cat("cannot register a word: ", why));
}

CUdeviceptr word_address(const PinnedMemory& pinned, const Board& board) {
  return pinned.device_address(reinterpret_cast<const std::byte*>(&board.word));
}

// The dying process: makes the event, enqueues work and after it the event or the word, and waits
// to be killed.
void live_and_die(const DriverOf& driver_of, DeadCase which, const DeadSettings& settings, Board& board) {
  const CudaDriver& driver = driver_of();
  const CudaContext context = CudaContext::open(driver, "");
  const CudaEventHandle event(context, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
  context.check(driver.ipc_get_event_handle(&board.handle, event.get()), "making an event for other processes");
  PinnedMemory pinned(context);
  register_word(pinned, board);
  DeviceArena arena(context, settings.work_bytes);
  const auto memory = reinterpret_cast<CUdeviceptr>(arena.allocate(settings.work_bytes, MemoryUse::kTensors));
  const CudaQueue queue(context, false);
  board.progress.store(1, std::memory_order_release);
  if (which != DeadCase::kNeverRecorded) {
    for (int i = 0; i < settings.work_times; ++i) {
      context.check(driver.memset_d8_async(memory, 0, settings.work_bytes, queue.get()), "enqueueing work");
    }
    if (is_about_a_word(which)) {
      context.check(
          driver.stream_write_value64(queue.get(), word_address(pinned, board), 1, CU_STREAM_WRITE_VALUE_DEFAULT),
          "enqueueing a write");
    } else {
      context.check(driver.event_record(event.get(), queue.get()), "recording an event");
    }
  }
  board.progress.store(2, std::memory_order_release);
  while (true) pause();
}

// The observing process.
class Observer {
 public:
  Observer(const DriverOf& driver, DeadCase which, const DeadSettings& settings, Board& board)
      : which_(which),
        settings_(settings),
        board_(board),
        driver_(driver()),
        context_(CudaContext::open(driver_, "")),
        pinned_(context_),
        queue_before_(context_, false),
        queue_after_(context_, false) {
    register_word(pinned_, board);
  }

  void look(Forked& other) {
    wait_for(1);
    if (!is_about_a_word(which_)) event_.emplace(CudaEventHandle::open(context_, board_.handle));
    wait_for(2);
    if (event_) note("query_before", query());
    const std::int64_t queued = now_ns();
    enqueue_wait(queue_before_);
    if (is_killed_after(which_)) note("wait_queued_before", watched(queue_before_, queued));
    other.kill();
    const std::int64_t died = now_ns();
    if (!is_killed_after(which_)) note("wait_queued_before", watched(queue_before_, died));
    if (event_) note("query_after", query());
    const std::int64_t queued_after = now_ns();
    enqueue_wait(queue_after_);
    note("wait_queued_after", watched(queue_after_, queued_after));
    if (event_) {
      note("synchronize", synchronized());
    } else {
      note("word", cat(board_.word.load(std::memory_order_acquire)));
    }
  }

 private:
  void wait_for(int progress) const {
    const Deadline deadline = Deadline::after_seconds(30);
    while (board_.progress.load(std::memory_order_acquire) < progress) {
      if (board_.progress.load() < 0 || deadline.passed())
        throw Error(static_cast<ExitCode>(board_.exit_code.load()), "the other process failed");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  [[nodiscard]] std::string text_of(CUresult result) const {
    if (result == CUDA_SUCCESS) return "complete";
    return result == CUDA_ERROR_NOT_READY ? "not ready" : cuda_result_text(driver_, result);
  }
  [[nodiscard]] std::string query() const { return text_of(driver_.event_query(event_->get())); }

  void enqueue_wait(const CudaQueue& queue) {
    const CUresult result =
        event_ ? driver_.stream_wait_event(queue.get(), event_->get(), CU_EVENT_WAIT_DEFAULT)
               : driver_.stream_wait_value64(queue.get(), word_address(pinned_, board_), 1, CU_STREAM_WAIT_VALUE_GEQ);
    if (result != CUDA_SUCCESS) enqueued_ = text_of(result);
  }

  // Waits until the stream has passed its wait, or the watch is over. Times count from `since_ns`.
  [[nodiscard]] std::string watched(const CudaQueue& queue, std::int64_t since_ns) {
    if (!enqueued_.empty()) return cat("cannot be enqueued: ", std::exchange(enqueued_, {}));
    const Deadline deadline = Deadline::after_seconds(settings_.watch_s);
    while (true) {
      const CUresult result = driver_.stream_query(queue.get());
      if (result == CUDA_SUCCESS) return cat("passed after ", (now_ns() - since_ns) / kNsPerMs, " ms");
      if (result != CUDA_ERROR_NOT_READY) return text_of(result);
      if (deadline.passed()) return cat("blocked for ", settings_.watch_s, " s");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  // Runs in a thread that may stay in the driver forever, since this process ends by _exit().
  [[nodiscard]] std::string synchronized() {
    auto result = std::make_shared<std::atomic<int>>(-1);
    const std::int64_t begin = now_ns();
    std::thread([this, result] {
      context_.make_current();
      result->store(driver_.event_synchronize(event_->get()));
    }).detach();
    const Deadline deadline = Deadline::after_seconds(settings_.watch_s);
    while (result->load() < 0) {
      if (deadline.passed()) return cat("blocked for ", settings_.watch_s, " s");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const auto code = static_cast<CUresult>(result->load());
    return code == CUDA_SUCCESS ? cat("returned after ", (now_ns() - begin) / kNsPerMs, " ms") : text_of(code);
  }

  // Writes to the board at once, so that findings are not lost if the next call hangs.
  void note(const char* name, const std::string& what) {
    text_ += cat(name, "\t", what, "\n");
    std::strncpy(board_.findings.data(), text_.c_str(), board_.findings.size() - 1);
  }

  const DeadCase which_;
  const DeadSettings settings_;
  Board& board_;
  const CudaDriver& driver_;
  const CudaContext context_;
  PinnedMemory pinned_;
  const CudaQueue queue_before_, queue_after_;
  std::optional<CudaEventHandle> event_;
  std::string enqueued_;
  std::string text_;
};

void live(const DriverOf& driver, DeadCase which, const DeadSettings& settings, Board& board) {
  try {
    live_and_die(driver, which, settings, board);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    board.exit_code.store(static_cast<int>(error.code()));
    board.progress.store(-1, std::memory_order_release);
  }
}

DeadFindings findings_of(const Board& board) {
  DeadFindings result;
  const std::string text(board.findings.data());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at), tab = text.find('\t', at);
    result.emplace_back(text.substr(at, tab - at), text.substr(tab + 1, end - tab - 1));
    at = end + 1;
  }
  return result;
}

}  // namespace

const char* dead_case_name(DeadCase which) {
  switch (which) {
    case DeadCase::kNeverRecorded: return "never_recorded";
    case DeadCase::kBeforeCompletion: return "before_completion";
    case DeadCase::kAfterCompletion: return "after_completion";
    case DeadCase::kWordBeforeCompletion: return "word_before_completion";
    case DeadCase::kWordAfterCompletion: return "word_after_completion";
  }
  RP_ASSERT(false);
}

DeadFindings try_dead_case(const DriverOf& driver, DeadCase which, const DeadSettings& settings) {
  const auto board = make_board();
  Forked observer([&] {
    // Forked before either process uses CUDA.
    Forked other([&] { live(driver, which, settings, *board); });
    auto* const looking = new Observer(driver, which, settings, *board);  // not destroyed, since that might hang
    looking->look(other);
    _exit(0);
  });
  const int code = observer.join(Deadline::after_seconds(20 + 4 * settings.watch_s));
  if (code == static_cast<int>(ExitCode::kNoResource))
    throw Error(ExitCode::kNoResource, "the case cannot be tried: see above");
  DeadFindings found = findings_of(*board);
  if (code == static_cast<int>(ExitCode::kHang)) found.emplace_back("observer", "hung in a call of the driver's");
  if (code != 0 && found.empty()) found.emplace_back("observer", cat("failed with ", code));
  return found;
}

}  // namespace rp
