#include "tests/cuda/fake_driver.h"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "common/check.h"

namespace rp::test {

namespace {

// How often an event was recorded, and which recording is done. In shared memory for events of other processes.
struct EventCell {
  std::atomic<std::uint64_t> recorded;
  std::atomic<std::uint64_t> completed;
};
constexpr std::uint64_t kCells = 1 << 16;
struct SharedCells {
  std::atomic<std::uint64_t> num_used;
  std::array<EventCell, kCells> cells;
};

SharedCells* g_cells = nullptr;

SharedCells& cells() {
  if (g_cells == nullptr) FakeDriver::share_events();
  return *g_cells;
}

enum class Kind { kCopy, kSet, kRecord, kWait, kWrite, kWaitValue, kCall };

struct Operation {
  Kind kind = Kind::kCopy;
  void* to = nullptr;
  const void* from = nullptr;
  std::uint64_t value = 0;
  EventCell* cell = nullptr;
  CUhostFn function = nullptr;
};

}  // namespace

struct FakeStream {
  std::deque<Operation> operations;
  std::vector<std::string> log;
  bool is_held = false;
  bool is_running = false;  // its first operation
  bool is_destroyed = false;
};

}  // namespace rp::test

// What the driver's handles point to.
struct CUctx_st {
  int device;
};
struct CUevent_st {
  rp::test::EventCell* cell;
  std::uint64_t number;
};
struct CUstream_st : rp::test::FakeStream {};

namespace rp::test {

struct FakeDriver::State {
  explicit State(const FakeDriverOptions& of) : options(of), random(of.seed) {}

  // Counts the call; what it must return instead of succeeding.
  CUresult begin(const char* function) {
    const std::lock_guard lock(mutex);
    ++calls[function];
    const auto failure = failures.find(function);
    if (failure == failures.end() || --failure->second.calls_left > 0) return CUDA_SUCCESS;
    const CUresult result = failure->second.result;
    failures.erase(failure);
    return result;
  }

  void enqueue(CUstream stream, const Operation& operation, std::string text) {
    const std::lock_guard lock(mutex);
    RP_ASSERT(!stream->is_destroyed);
    stream->operations.push_back(operation);
    stream->log.push_back(std::move(text));
    changed.notify_all();
  }

  // The stream's first operation can run.
  static bool can_run(FakeStream& stream) {
    if (stream.is_held || stream.is_running || stream.operations.empty()) return false;
    const Operation& first = stream.operations.front();
    // Its words and events may be gone, and nobody hears of what comes behind.
    if (stream.is_destroyed && (first.kind == Kind::kWait || first.kind == Kind::kWaitValue)) {
      stream.operations.clear();
      return false;
    }
    if (first.kind == Kind::kWait) return first.cell->completed.load(std::memory_order_acquire) >= first.value;
    if (first.kind == Kind::kWaitValue) {
      const auto value = static_cast<const std::atomic<std::uint64_t>*>(first.from)->load(std::memory_order_acquire);
      return static_cast<std::int64_t>(value - first.value) >= 0;
    }
    return true;
  }

  static void execute(const Operation& operation) {
    switch (operation.kind) {
      case Kind::kCopy: std::memcpy(operation.to, operation.from, operation.value); return;
      case Kind::kSet: std::memset(operation.to, 0, operation.value); return;
      case Kind::kRecord: operation.cell->completed.store(operation.value, std::memory_order_release); return;
      case Kind::kWrite:
        static_cast<std::atomic<std::uint64_t>*>(operation.to)->store(operation.value, std::memory_order_release);
        return;
      case Kind::kCall: operation.function(operation.to); return;
      case Kind::kWait:
      case Kind::kWaitValue: return;
    }
  }

  void run() {
    std::unique_lock lock(mutex);
    while (!ends) {
      std::vector<FakeStream*> ready;
      for (const auto& stream : streams) {
        if (can_run(*stream)) ready.push_back(stream.get());
      }
      if (ready.empty()) {
        // Others' words and events change without a call of this driver's.
        changed.wait_for(lock, std::chrono::microseconds(100));
        continue;
      }
      FakeStream& stream = *ready[random() % ready.size()];
      const Operation operation = stream.operations.front();
      const int delay_us = options.max_delay_us > 0 ? static_cast<int>(random() % static_cast<unsigned>(options.max_delay_us)) : 0;
      stream.is_running = true;
      lock.unlock();
      if (delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
      execute(operation);
      lock.lock();
      stream.is_running = false;
      stream.operations.pop_front();
    }
  }

  struct Failure {
    CUresult result;
    int calls_left;
  };

  const FakeDriverOptions options;
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::mt19937 random;
  std::vector<std::unique_ptr<CUstream_st>> streams;
  std::vector<std::unique_ptr<CUevent_st>> events;
  std::vector<std::unique_ptr<CUctx_st>> contexts;
  std::map<std::string, int> calls;
  std::map<std::string, Failure> failures;
  std::map<void*, std::uint64_t> device_memory;
  std::map<void*, std::uint64_t> host_memory;
  std::multimap<void*, std::uint64_t> registered;
  std::uint64_t taken = 0;
  bool ends = false;
  std::thread thread;
};

namespace {

FakeDriver::State* g_state = nullptr;

}  // namespace

// The driver's functions.
struct FakeCalls {
  static FakeDriver::State& state() { return *g_state; }

#define RP_FAKE_BEGIN(name) \
  if (const CUresult result = state().begin(name); result != CUDA_SUCCESS) return result

  static CUresult init(unsigned) {
    RP_FAKE_BEGIN("cuInit");
    return CUDA_SUCCESS;
  }
  static CUresult driver_get_version(int* version) {
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
  }
  static CUresult get_error_name(CUresult result, const char** text) {
    *text = result == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return CUDA_SUCCESS;
  }
  static CUresult get_error_string(CUresult, const char** text) {
    *text = "a fault that a test asked for";
    return CUDA_SUCCESS;
  }
  static CUresult device_get_count(int* count) {
    *count = state().options.num_gpus;
    return CUDA_SUCCESS;
  }
  static CUresult device_get(CUdevice* device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
  }
  static CUresult device_get_uuid(CUuuid* uuid, CUdevice device) {
    std::memset(uuid->bytes, 0, sizeof(uuid->bytes));
    uuid->bytes[15] = static_cast<char>(device);
    return CUDA_SUCCESS;
  }
  static CUresult device_get_name(char* name, int length, CUdevice) {
    std::strncpy(name, "Fake", static_cast<std::size_t>(length));
    return CUDA_SUCCESS;
  }
  static CUresult device_get_attribute(int* value, CUdevice_attribute attribute, CUdevice) {
    *value = 1;
    if (attribute == CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) *value = state().options.has_word_operations ? 1 : 0;
    if (attribute == CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED) *value = state().options.registers_read_only ? 1 : 0;
    return CUDA_SUCCESS;
  }
  static CUresult primary_context_retain(CUcontext* context, CUdevice device) {
    RP_FAKE_BEGIN("cuDevicePrimaryCtxRetain");
    const std::lock_guard lock(state().mutex);
    state().contexts.push_back(std::make_unique<CUctx_st>(CUctx_st{device}));
    *context = state().contexts.back().get();
    return CUDA_SUCCESS;
  }
  static CUresult primary_context_release(CUdevice) { return CUDA_SUCCESS; }
  static CUresult primary_context_set_flags(CUdevice, unsigned) { return CUDA_SUCCESS; }
  static CUresult context_set_current(CUcontext) {
    RP_FAKE_BEGIN("cuCtxSetCurrent");
    return CUDA_SUCCESS;
  }
  static CUresult stream_priority_range(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return CUDA_SUCCESS;
  }
  static CUresult mem_get_info(std::size_t* free, std::size_t* total) {
    const std::lock_guard lock(state().mutex);
    *total = state().options.memory_bytes;
    *free = *total - state().taken;
    return CUDA_SUCCESS;
  }
  static CUresult mem_alloc(CUdeviceptr* memory, std::size_t bytes) {
    RP_FAKE_BEGIN("cuMemAlloc");
    const std::lock_guard lock(state().mutex);
    if (bytes > state().options.memory_bytes - state().taken) return CUDA_ERROR_OUT_OF_MEMORY;
    void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    state().taken += bytes;
    state().device_memory[data] = bytes;
    *memory = reinterpret_cast<CUdeviceptr>(data);
    return CUDA_SUCCESS;
  }
  static CUresult mem_free(CUdeviceptr memory) {
    const std::lock_guard lock(state().mutex);
    const auto found = state().device_memory.find(reinterpret_cast<void*>(memory));
    if (found == state().device_memory.end()) return CUDA_ERROR_INVALID_VALUE;
    state().taken -= found->second;
    munmap(found->first, found->second);
    state().device_memory.erase(found);
    return CUDA_SUCCESS;
  }
  static CUresult mem_host_alloc(void** memory, std::size_t bytes, unsigned) {
    RP_FAKE_BEGIN("cuMemHostAlloc");
    const std::lock_guard lock(state().mutex);
    *memory = std::malloc(bytes);
    state().host_memory[*memory] = bytes;
    return CUDA_SUCCESS;
  }
  static CUresult mem_free_host(void* memory) {
    const std::lock_guard lock(state().mutex);
    if (state().host_memory.erase(memory) == 0) return CUDA_ERROR_INVALID_VALUE;
    std::free(memory);
    return CUDA_SUCCESS;
  }
  static CUresult mem_host_register(void* memory, std::size_t bytes, unsigned flags) {
    RP_FAKE_BEGIN("cuMemHostRegister");
    if (bytes == 0 || reinterpret_cast<std::uintptr_t>(memory) % 4096 != 0 || bytes % 4096 != 0) return CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock(state().mutex);
    if ((flags & CU_MEMHOSTREGISTER_READ_ONLY) != 0 && !state().options.registers_read_only) return CUDA_ERROR_INVALID_VALUE;
    state().registered.emplace(memory, bytes);
    return CUDA_SUCCESS;
  }
  static CUresult mem_host_unregister(void* memory) {
    const std::lock_guard lock(state().mutex);
    const auto found = state().registered.find(memory);
    if (found == state().registered.end()) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    state().registered.erase(found);
    return CUDA_SUCCESS;
  }
  static CUresult mem_host_get_device_pointer(CUdeviceptr* device, void* memory, unsigned) {
    RP_FAKE_BEGIN("cuMemHostGetDevicePointer");
    *device = reinterpret_cast<CUdeviceptr>(memory);
    return CUDA_SUCCESS;
  }
  static CUresult memcpy_async(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    RP_FAKE_BEGIN("cuMemcpyAsync");
    state().enqueue(stream,
                    {.kind = Kind::kCopy, .to = reinterpret_cast<void*>(to), .from = reinterpret_cast<const void*>(from), .value = bytes},
                    "copy " + std::to_string(bytes));
    return CUDA_SUCCESS;
  }
  static CUresult memset_d8_async(CUdeviceptr to, unsigned char, std::size_t bytes, CUstream stream) {
    RP_FAKE_BEGIN("cuMemsetD8Async");
    state().enqueue(stream, {.kind = Kind::kSet, .to = reinterpret_cast<void*>(to), .value = bytes}, "set " + std::to_string(bytes));
    return CUDA_SUCCESS;
  }
  static CUresult stream_create(CUstream* stream, unsigned, int) {
    RP_FAKE_BEGIN("cuStreamCreateWithPriority");
    const std::lock_guard lock(state().mutex);
    state().streams.push_back(std::make_unique<CUstream_st>());
    *stream = state().streams.back().get();
    return CUDA_SUCCESS;
  }
  // What is in it is finished, up to its next wait.
  static CUresult stream_destroy(CUstream stream) {
    const std::lock_guard lock(state().mutex);
    stream->is_destroyed = true;
    return CUDA_SUCCESS;
  }
  static CUresult stream_query(CUstream stream) {
    RP_FAKE_BEGIN("cuStreamQuery");
    const std::lock_guard lock(state().mutex);
    return stream->operations.empty() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  }
  static CUresult stream_wait_event(CUstream stream, CUevent event, unsigned) {
    RP_FAKE_BEGIN("cuStreamWaitEvent");
    state().enqueue(stream, {.kind = Kind::kWait, .value = event->cell->recorded.load(std::memory_order_acquire), .cell = event->cell},
                    "wait e" + std::to_string(event->number));
    return CUDA_SUCCESS;
  }
  static CUresult stream_write_value64(CUstream stream, CUdeviceptr word, cuuint64_t value, unsigned) {
    RP_FAKE_BEGIN("cuStreamWriteValue64");
    state().enqueue(stream, {.kind = Kind::kWrite, .to = reinterpret_cast<void*>(word), .value = value}, "write " + std::to_string(value));
    return CUDA_SUCCESS;
  }
  static CUresult stream_wait_value64(CUstream stream, CUdeviceptr word, cuuint64_t value, unsigned flags) {
    RP_FAKE_BEGIN("cuStreamWaitValue64");
    if (flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_INVALID_VALUE;
    state().enqueue(stream, {.kind = Kind::kWaitValue, .from = reinterpret_cast<const void*>(word), .value = value},
                    "wait >= " + std::to_string(value));
    return CUDA_SUCCESS;
  }
  static CUresult launch_host_func(CUstream stream, CUhostFn function, void* argument) {
    RP_FAKE_BEGIN("cuLaunchHostFunc");
    state().enqueue(stream, {.kind = Kind::kCall, .to = argument, .function = function}, "call");
    return CUDA_SUCCESS;
  }
  static CUevent make_event(EventCell* cell) {
    const std::lock_guard lock(state().mutex);
    state().events.push_back(std::make_unique<CUevent_st>(CUevent_st{cell, state().events.size()}));
    return state().events.back().get();
  }
  static CUresult event_create(CUevent* event, unsigned) {
    RP_FAKE_BEGIN("cuEventCreate");
    *event = make_event(&cells().cells.at(cells().num_used.fetch_add(1)));
    return CUDA_SUCCESS;
  }
  static CUresult event_destroy(CUevent) { return CUDA_SUCCESS; }
  static CUresult event_record(CUevent event, CUstream stream) {
    RP_FAKE_BEGIN("cuEventRecord");
    const std::uint64_t number = event->cell->recorded.fetch_add(1, std::memory_order_acq_rel) + 1;
    state().enqueue(stream, {.kind = Kind::kRecord, .value = number, .cell = event->cell}, "record e" + std::to_string(event->number));
    return CUDA_SUCCESS;
  }
  static CUresult event_query(CUevent event) {
    RP_FAKE_BEGIN("cuEventQuery");
    return event->cell->completed.load() >= event->cell->recorded.load() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  }
  static CUresult event_synchronize(CUevent event) {
    RP_FAKE_BEGIN("cuEventSynchronize");
    while (event->cell->completed.load() < event->cell->recorded.load()) std::this_thread::sleep_for(std::chrono::microseconds(50));
    return CUDA_SUCCESS;
  }
  static CUresult event_elapsed_time(float* ms, CUevent, CUevent) {
    *ms = 1;
    return CUDA_SUCCESS;
  }
  static CUresult ipc_get_event_handle(CUipcEventHandle* handle, CUevent event) {
    RP_FAKE_BEGIN("cuIpcGetEventHandle");
    const std::uint64_t number = static_cast<std::uint64_t>(event->cell - cells().cells.data());
    std::memset(handle, 0, sizeof(*handle));
    std::memcpy(handle, &number, sizeof(number));
    return CUDA_SUCCESS;
  }
  static CUresult ipc_open_event_handle(CUevent* event, CUipcEventHandle handle) {
    RP_FAKE_BEGIN("cuIpcOpenEventHandle");
    std::uint64_t number = 0;
    std::memcpy(&number, &handle, sizeof(number));
    *event = make_event(&cells().cells.at(number));
    return CUDA_SUCCESS;
  }
#undef RP_FAKE_BEGIN

  static CudaDriver make_table() {
    CudaDriver driver;
#define RP_FAKE_MEMBER(member, function) driver.member = &FakeCalls::member;
    RP_CUDA_FUNCTIONS(RP_FAKE_MEMBER)
#undef RP_FAKE_MEMBER
    return driver;
  }
};

void FakeDriver::share_events() {
  if (g_cells != nullptr) return;
  void* const memory = mmap(nullptr, sizeof(SharedCells), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  RP_ASSERT(memory != MAP_FAILED);
  g_cells = static_cast<SharedCells*>(memory);
}

FakeDriver::FakeDriver(const FakeDriverOptions& options) : state_(std::make_unique<State>(options)) {
  RP_ASSERT(g_state == nullptr);
  g_state = state_.get();
  state_->thread = std::thread([this] { state_->run(); });
}

FakeDriver::~FakeDriver() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->ends = true;
    state_->changed.notify_all();
  }
  state_->thread.join();
  g_state = nullptr;
}

const CudaDriver& FakeDriver::table() const {
  static const CudaDriver table = FakeCalls::make_table();
  return table;
}

void FakeDriver::fail(const std::string& function, CUresult result, int call) {
  const std::lock_guard lock(state_->mutex);
  state_->failures[function] = {.result = result, .calls_left = call};
}

int FakeDriver::num_calls(const std::string& function) const {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->calls.find(function);
  return found == state_->calls.end() ? 0 : found->second;
}

std::vector<std::vector<std::string>> FakeDriver::log() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<std::vector<std::string>> result;
  for (const auto& stream : state_->streams) result.push_back(stream->log);
  return result;
}

void FakeDriver::clear_log() {
  const std::lock_guard lock(state_->mutex);
  for (const auto& stream : state_->streams) stream->log.clear();
}

void FakeDriver::hold(int stream) {
  const std::lock_guard lock(state_->mutex);
  state_->streams.at(static_cast<std::size_t>(stream))->is_held = true;
}

void FakeDriver::let_go(int stream) {
  const std::lock_guard lock(state_->mutex);
  state_->streams.at(static_cast<std::size_t>(stream))->is_held = false;
  state_->changed.notify_all();
}

std::uint64_t FakeDriver::registered_bytes() const {
  const std::lock_guard lock(state_->mutex);
  std::uint64_t sum = 0;
  for (const auto& [memory, bytes] : state_->registered) sum += bytes;
  return sum;
}

std::uint64_t FakeDriver::taken_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->taken;
}

}  // namespace rp::test
