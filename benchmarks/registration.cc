#include "benchmarks/registration.h"

#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "benchmarks/forked.h"
#include "common/check.h"
#include "common/system/clock.h"
#include "common/system/fd.h"
#include "common/text.h"
#include "cuda/cuda_stream.h"

namespace rp {

namespace {

constexpr std::uint64_t kPage = 4096;
constexpr int kMaxProcesses = 16;

// Memory that the processes share; zero at the start.
struct Board {
  struct Process {
    RegistrationFigures figures;  // writer: the process; read when it has ended
    std::atomic<int> is_ready;    // writer: the process. SYNC: release; pairs with the acquire in begin_together()
  };
  std::array<Process, kMaxProcesses> processes;
};

class SharedMapping {
 public:
  // Maps the file, or memory without a file if `fd` is -1.
  SharedMapping(int fd, std::uint64_t bytes) : bytes_(bytes) {
    const int flags = MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0);
    void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (data == MAP_FAILED)
      throw Error(ExitCode::kNoResource, cat("cannot map ", bytes_text(bytes), "; end other programs"));
    data_ = static_cast<std::byte*>(data);
  }
  ~SharedMapping() { munmap(data_, bytes_); }
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  const std::uint64_t bytes_;
  std::byte* data_ = nullptr;
};

// Makes a file like those of a store without /dev/shm. All of its pages are populated, since
// only the registration is to be measured.
UniqueFd make_store(std::uint64_t bytes) {
  UniqueFd fd(memfd_create("roundpipe-registration", MFD_CLOEXEC));
  if (!fd || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    throw Error(ExitCode::kNoResource, "no memory for a store");
  const SharedMapping store(fd.get(), bytes);
  (void)madvise(store.data(), bytes, MADV_HUGEPAGE);  // as the store does
  std::memset(store.data(), 1, bytes);
  return fd;
}

// The calls that a busy process repeats, each of them timed.
class BusyCalls {
 public:
  explicit BusyCalls(const CudaContext& context)
      : context_(context), queue_(context, true), arena_(context, 2 * kPage) {
    on_gpu_ = reinterpret_cast<CUdeviceptr>(arena_.allocate(kPage, MemoryUse::kInputs));
    context.check(context.driver().mem_host_alloc(&page_, kPage, CU_MEMHOSTALLOC_PORTABLE), "taking pinned memory");
    (void)run_once({});  // loads modules
  }
  ~BusyCalls() { (void)context_.driver().mem_free_host(page_); }
  BusyCalls(const BusyCalls&) = delete;
  BusyCalls& operator=(const BusyCalls&) = delete;

  [[nodiscard]] LongestCalls run_once(LongestCalls longest) {
    const CudaDriver& driver = context_.driver();
    const auto timed = [](std::int64_t& most, const auto& call) {
      const std::int64_t begin = now_ns();
      call();
      most = std::max(most, now_ns() - begin);
    };
    timed(longest.launch_ns, [&] {
      context_.check(driver.memset_d8_async(on_gpu_, 0, 256, queue_.get()), "launching a kernel");
      wait_for_gpu();
    });
    timed(longest.copy_ns, [&] {
      context_.check(driver.memcpy_async(on_gpu_, reinterpret_cast<CUdeviceptr>(page_), kPage, queue_.get()),
                     "enqueueing a copy");
      wait_for_gpu();
    });
    timed(longest.mmap_ns, [] {
      void* const page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (page != MAP_FAILED) munmap(page, kPage);
    });
    return longest;
  }

 private:
  // Waits without a sleep, whose length would be measured as well.
  void wait_for_gpu() const {
    const Deadline deadline = Deadline::after_seconds(60);
    CUresult result = CUDA_SUCCESS;
    while ((result = context_.driver().stream_query(queue_.get())) == CUDA_ERROR_NOT_READY) {
      if (deadline.passed()) throw Error(ExitCode::kHang, "the GPU did not end a kernel or a copy within 60 s");
    }
    context_.check(result, "waiting for the GPU");
  }

  const CudaContext& context_;
  const CudaQueue queue_;
  DeviceArena arena_;
  CUdeviceptr on_gpu_ = 0;
  void* page_ = nullptr;
};

// Registers a mapping piece by piece, and counts the attempts that failed. The mapping must outlive
// this object.
class Registrar {
 public:
  Registrar(const CudaContext& context, const RegistrationSettings& settings)
      : context_(context), settings_(settings) {}
  ~Registrar() {
    for (std::byte* const piece : pieces_) (void)context_.driver().mem_host_unregister(piece);
  }
  Registrar(const Registrar&) = delete;
  Registrar& operator=(const Registrar&) = delete;

  void add_all(std::byte* data, std::uint64_t bytes, unsigned flags, RegistrationFigures& figures) {
    for (std::uint64_t at = 0; at < bytes; at += settings_.piece_bytes) {
      figures.given_up += add(data + at, std::min(settings_.piece_bytes, bytes - at), flags, figures) ? 0 : 1;
    }
  }

 private:
  bool add(std::byte* data, std::uint64_t bytes, unsigned flags, RegistrationFigures& figures) {
    for (int attempt = 0; attempt < settings_.max_attempts; ++attempt) {
      if (context_.driver().mem_host_register(data, bytes, flags) == CUDA_SUCCESS) {
        pieces_.push_back(data);
        return true;
      }
      ++figures.failed_attempts;
      sleep_until_ns(now_ns() + settings_.pause_ns);
    }
    return false;
  }

  const CudaContext& context_;
  const RegistrationSettings& settings_;
  std::vector<std::byte*> pieces_;
};

// Returns when all processes have called it, so that they register at the same time, which is what
// may fail.
void begin_together(Board& board, int number, int num_processes, double timeout_s) {
  board.processes[number].is_ready.store(1, std::memory_order_release);
  const Deadline deadline = Deadline::after_seconds(timeout_s);
  for (int i = 0; i < num_processes; ++i) {
    while (board.processes[i].is_ready.load(std::memory_order_acquire) == 0) {
      if (deadline.passed()) throw Error(ExitCode::kHang, "another process did not begin");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

// Runs one process: it times its own calls, first alone, then while another of its threads
// registers the store.
void register_and_watch(const CudaDriver& driver, int fd, int number, int num_processes,
                        const RegistrationSettings& settings, Board& board) {
  const CudaContext context = CudaContext::open(driver, "");
  const SharedMapping store(fd, settings.bytes);
  const std::uint64_t half = settings.bytes / 2 / kPage * kPage;
  constexpr unsigned kFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  unsigned read_only_flags = kFlags;
  if (context.attribute(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED) != 0) {
    if (mprotect(store.data() + half, settings.bytes - half, PROT_READ) != 0)
      throw Error(ExitCode::kNoResource, "mprotect failed");
    read_only_flags |= CU_MEMHOSTREGISTER_READ_ONLY;
  }
  Registrar registrar(context, settings);
  BusyCalls calls(context);
  RegistrationFigures figures;
  for (const std::int64_t end = now_ns() + settings.idle_ns; now_ns() < end;)
    figures.idle = calls.run_once(figures.idle);
  begin_together(board, number, num_processes, settings.timeout_s);
  const std::int64_t begin = now_ns();
  std::atomic<bool> is_through{false};
  std::thread registering([&] {
    context.make_current();
    registrar.add_all(store.data(), half, kFlags, figures);
    registrar.add_all(store.data() + half, settings.bytes - half, read_only_flags, figures);
    figures.slowest_ns = now_ns() - begin;
    is_through.store(true, std::memory_order_release);
  });
  LongestCalls busy;
  try {
    do {
      busy = calls.run_once(busy);
    } while (!is_through.load(std::memory_order_acquire));
  } catch (...) {
    registering.join();
    throw;
  }
  registering.join();
  figures.busy = busy;
  board.processes[number].figures = figures;
}

LongestCalls longer(const LongestCalls& a, const LongestCalls& b) {
  return {std::max(a.launch_ns, b.launch_ns), std::max(a.copy_ns, b.copy_ns), std::max(a.mmap_ns, b.mmap_ns)};
}

}  // namespace

RegistrationFigures measure_registration(const DriverOf& driver, int num_processes,
                                         const RegistrationSettings& settings) {
  RP_ASSERT(num_processes > 0 && num_processes <= kMaxProcesses);
  const SharedMapping memory(-1, sizeof(Board));
  auto& board = *reinterpret_cast<Board*>(memory.data());
  const UniqueFd store = make_store(settings.bytes);
  std::vector<Forked> processes;
  for (int i = 0; i < num_processes; ++i) {
    processes.emplace_back([&] { register_and_watch(driver(), store.get(), i, num_processes, settings, board); });
  }
  const Deadline deadline = Deadline::after_seconds(settings.timeout_s);
  for (Forked& process : processes) {
    if (const int code = process.join(deadline); code != 0) {
      throw Error(static_cast<ExitCode>(code), cat("one of ", num_processes, " processes ended with exit code ", code));
    }
  }
  RegistrationFigures all;
  for (int i = 0; i < num_processes; ++i) {
    const RegistrationFigures& one = board.processes[i].figures;
    all.slowest_ns = std::max(all.slowest_ns, one.slowest_ns);
    all.failed_attempts += one.failed_attempts;
    all.given_up += one.given_up;
    all.idle = longer(all.idle, one.idle);
    all.busy = longer(all.busy, one.busy);
  }
  return all;
}

}  // namespace rp
