// The driver's functions, without a GPU. Failures that a test requested have priority over all
// others.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "common/check.h"
#include "tests/cuda/fake_driver/fake_state.h"

namespace rp::test {

namespace {

using Kind = FakeOperation::Kind;

thread_local CUcontext t_context = nullptr;

FakeDriver::State& state() { return fake_state(); }

// Counts the call, and returns the result that it must return instead of succeeding.
CUresult begin(const char* function) {
  RP_ASSERT(!FakeStreams::is_in_host_function());
  const std::lock_guard lock(state().mutex);
  ++state().calls[function];
  if (state().fault != CUDA_SUCCESS) return state().fault;
  const auto failure = state().failures.find(function);
  if (failure == state().failures.end() || --failure->second.calls_left > 0) return CUDA_SUCCESS;
  const CUresult result = failure->second.result;
  state().failures.erase(failure);
  return result;
}

// The same for a function that needs a current context in its thread.
CUresult begin_in_context(const char* function) {
  if (const CUresult result = begin(function); result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(state().mutex);
  const auto is_current = [](const auto& context) { return context.get() == t_context; };
  return std::any_of(state().contexts.begin(), state().contexts.end(), is_current) ? CUDA_SUCCESS
                                                                                   : CUDA_ERROR_INVALID_CONTEXT;
}

// The same for a function that enqueues.
CUresult begin_on(const char* function, CUstream stream) {
  const CUresult result = begin_in_context(function);
  return result == CUDA_SUCCESS && stream->context != t_context ? CUDA_ERROR_INVALID_HANDLE : result;
}

#define RP_RETURN_FAILURE(call) \
  if (const CUresult result = (call); result != CUDA_SUCCESS) return result

}  // namespace

struct FakeCalls {
  // The driver and its GPUs
  static CUresult init(unsigned) { return begin("cuInit"); }
  static CUresult driver_get_version(int* version) {
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
  }
  static CUresult get_error_name(CUresult result, const char** text) {
    *text = result == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return CUDA_SUCCESS;
  }
  static CUresult get_error_string(CUresult result, const char** text) {
    *text = result == CUDA_ERROR_ILLEGAL_ADDRESS ? "a fault of the GPU's" : "a fault that a test asked for";
    return CUDA_SUCCESS;
  }
  static CUresult device_get_count(int* count) {
    RP_RETURN_FAILURE(begin("cuDeviceGetCount"));
    *count = state().options.num_gpus;
    return CUDA_SUCCESS;
  }
  static CUresult device_get(CUdevice* device, int ordinal) {
    RP_RETURN_FAILURE(begin("cuDeviceGet"));
    *device = ordinal;
    return CUDA_SUCCESS;
  }
  static CUresult device_get_uuid(CUuuid* uuid, CUdevice device) {
    RP_RETURN_FAILURE(begin("cuDeviceGetUuid"));
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
    if (attribute == CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)
      *value = state().options.has_word_operations ? 1 : 0;
    if (attribute == CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)
      *value = state().options.registers_read_only ? 1 : 0;
    return CUDA_SUCCESS;
  }

  // Contexts
  static CUresult primary_context_retain(CUcontext* context, CUdevice device) {
    RP_RETURN_FAILURE(begin("cuDevicePrimaryCtxRetain"));
    const std::lock_guard lock(state().mutex);
    state().contexts.push_back(std::make_unique<CUctx_st>(CUctx_st{device, state().contexts.size()}));
    *context = state().contexts.back().get();
    return CUDA_SUCCESS;
  }
  static CUresult primary_context_release(CUdevice) { return CUDA_SUCCESS; }
  static CUresult primary_context_set_flags(CUdevice, unsigned) { return CUDA_SUCCESS; }
  static CUresult context_set_current(CUcontext context) {
    RP_RETURN_FAILURE(begin("cuCtxSetCurrent"));
    t_context = context;
    return CUDA_SUCCESS;
  }
  static CUresult stream_priority_range(int* least, int* greatest) {
    RP_RETURN_FAILURE(begin_in_context("cuCtxGetStreamPriorityRange"));
    *least = 0;
    *greatest = -5;
    return CUDA_SUCCESS;
  }

  // Memory
  static CUresult mem_get_info(std::size_t* free, std::size_t* total) {
    RP_RETURN_FAILURE(begin_in_context("cuMemGetInfo"));
    const std::lock_guard lock(state().mutex);
    *total = state().memory.gpu_bytes();
    *free = *total - state().memory.taken_bytes();
    return CUDA_SUCCESS;
  }
  static CUresult mem_alloc(CUdeviceptr* memory, std::size_t bytes) {
    RP_RETURN_FAILURE(begin_in_context("cuMemAlloc"));
    const std::lock_guard lock(state().mutex);
    return state().memory.allocate(t_context, memory, bytes);
  }
  static CUresult mem_free(CUdeviceptr memory) {
    RP_RETURN_FAILURE(begin_in_context("cuMemFree"));
    state().streams.wait_until_idle(t_context);
    const std::lock_guard lock(state().mutex);
    return state().memory.free(t_context, memory);
  }
  static CUresult mem_host_alloc(void** memory, std::size_t bytes, unsigned) {
    RP_RETURN_FAILURE(begin_in_context("cuMemHostAlloc"));
    const std::lock_guard lock(state().mutex);
    return state().memory.allocate_host(t_context, memory, bytes);
  }
  static CUresult mem_free_host(void* memory) {
    RP_RETURN_FAILURE(begin_in_context("cuMemFreeHost"));
    state().streams.wait_until_idle(t_context);
    const std::lock_guard lock(state().mutex);
    return state().memory.free_host(t_context, memory);
  }
  static CUresult mem_host_register(void* memory, std::size_t bytes, unsigned flags) {
    RP_RETURN_FAILURE(begin_in_context("cuMemHostRegister"));
    RP_RETURN_FAILURE(state().registrations.refusal(t_context, memory, bytes));
    const std::lock_guard lock(state().mutex);
    const CUresult result = state().memory.add(t_context, memory, bytes, flags);
    if (result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) state().registrations.count_twice();
    return result;
  }
  static CUresult mem_host_unregister(void* memory) {
    RP_RETURN_FAILURE(begin_in_context("cuMemHostUnregister"));
    state().streams.wait_until_idle(t_context);
    const std::lock_guard lock(state().mutex);
    return state().memory.remove(t_context, memory);
  }
  static CUresult mem_host_get_device_pointer(CUdeviceptr* device, void* memory, unsigned) {
    RP_RETURN_FAILURE(begin_in_context("cuMemHostGetDevicePointer"));
    const std::lock_guard lock(state().mutex);
    return state().memory.device_address(t_context, device, memory);
  }
  static CUresult memcpy_async(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    RP_RETURN_FAILURE(begin_on("cuMemcpyAsync", stream));
    void* target = nullptr;
    void* source = nullptr;
    {
      const std::lock_guard lock(state().mutex);
      RP_RETURN_FAILURE(state().memory.operand(t_context, to, bytes, true, &target));
      RP_RETURN_FAILURE(state().memory.operand(t_context, from, bytes, false, &source));
    }
    state().streams.enqueue(stream, {.kind = Kind::kCopy, .to = target, .from = source, .value = bytes},
                            "copy " + std::to_string(bytes));
    return CUDA_SUCCESS;
  }
  static CUresult memset_d8_async(CUdeviceptr to, unsigned char, std::size_t bytes, CUstream stream) {
    RP_RETURN_FAILURE(begin_on("cuMemsetD8Async", stream));
    void* target = nullptr;
    {
      const std::lock_guard lock(state().mutex);
      RP_RETURN_FAILURE(state().memory.operand(t_context, to, bytes, true, &target));
    }
    state().streams.enqueue(stream, {.kind = Kind::kSet, .to = target, .value = bytes}, "set " + std::to_string(bytes));
    return CUDA_SUCCESS;
  }

  // Streams
  static CUresult stream_create(CUstream* stream, unsigned flags, int) {
    RP_RETURN_FAILURE(begin_in_context("cuStreamCreateWithPriority"));
    RP_ASSERT(flags == CU_STREAM_NON_BLOCKING);  // else LibTorch's work in the default stream would block it
    *stream = state().streams.create(t_context);
    return CUDA_SUCCESS;
  }
  static CUresult stream_destroy(CUstream stream) {
    RP_RETURN_FAILURE(begin("cuStreamDestroy"));
    state().streams.destroy(stream);
    return CUDA_SUCCESS;
  }
  static CUresult stream_query(CUstream stream) {
    RP_RETURN_FAILURE(begin_on("cuStreamQuery", stream));
    return state().streams.is_idle(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  }
  static CUresult stream_wait_event(CUstream stream, CUevent event, unsigned) {
    RP_RETURN_FAILURE(begin_on("cuStreamWaitEvent", stream));
    RP_ASSERT(!event->is_destroyed.load());
    state().streams.enqueue(
        stream,
        {.kind = Kind::kWait, .value = event->cell->recorded.load(std::memory_order_acquire), .cell = event->cell},
        "wait e" + std::to_string(event->number));
    return CUDA_SUCCESS;
  }
  static CUresult stream_write_value64(CUstream stream, CUdeviceptr word, cuuint64_t value, unsigned flags) {
    RP_RETURN_FAILURE(begin_on("cuStreamWriteValue64", stream));
    void* target = nullptr;
    {
      const std::lock_guard lock(state().mutex);
      RP_RETURN_FAILURE(state().memory.word(t_context, word, true, &target));
    }
    RP_ASSERT(flags == CU_STREAM_WRITE_VALUE_DEFAULT);  // else it is not ordered after the copies
    state().streams.enqueue(stream, {.kind = Kind::kWrite, .to = target, .value = value},
                            "write " + std::to_string(value));
    return CUDA_SUCCESS;
  }
  static CUresult stream_wait_value64(CUstream stream, CUdeviceptr word, cuuint64_t value, unsigned flags) {
    RP_RETURN_FAILURE(begin_on("cuStreamWaitValue64", stream));
    if (flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_INVALID_VALUE;
    void* source = nullptr;
    {
      const std::lock_guard lock(state().mutex);
      RP_RETURN_FAILURE(state().memory.word(t_context, word, false, &source));
    }
    state().streams.enqueue(stream, {.kind = Kind::kWaitValue, .from = source, .value = value},
                            "wait >= " + std::to_string(value));
    return CUDA_SUCCESS;
  }
  static CUresult launch_host_func(CUstream stream, CUhostFn function, void* argument) {
    RP_RETURN_FAILURE(begin_on("cuLaunchHostFunc", stream));
    state().streams.enqueue(stream, {.kind = Kind::kCall, .to = argument, .function = function}, "call");
    return CUDA_SUCCESS;
  }

  // Events
  static CUevent make_event(EventCell* cell, unsigned flags) {
    const std::lock_guard lock(state().mutex);
    state().events.push_back(std::make_unique<CUevent_st>(cell, state().events.size(), t_context, flags));
    return state().events.back().get();
  }
  static CUresult event_create(CUevent* event, unsigned flags) {
    RP_RETURN_FAILURE(begin_in_context("cuEventCreate"));
    if ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0) return CUDA_ERROR_INVALID_VALUE;
    *event = make_event(&new_event_cell(t_context), flags);
    return CUDA_SUCCESS;
  }
  static CUresult event_destroy(CUevent event) {
    RP_RETURN_FAILURE(begin("cuEventDestroy"));
    RP_ASSERT(!event->is_destroyed.exchange(true));
    return CUDA_SUCCESS;
  }
  static CUresult event_record(CUevent event, CUstream stream) {
    RP_RETURN_FAILURE(begin_on("cuEventRecord", stream));
    RP_ASSERT(!event->is_destroyed.load());
    if (event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
    state().streams.enqueue_record(stream, *event);
    return CUDA_SUCCESS;
  }
  static bool is_complete(const CUevent_st& event) {
    return event.cell->completed.load() >= event.cell->recorded.load();
  }
  static CUresult event_query(CUevent event) {
    RP_RETURN_FAILURE(begin_in_context("cuEventQuery"));
    return is_complete(*event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  }
  static CUresult event_synchronize(CUevent event) {
    RP_RETURN_FAILURE(begin_in_context("cuEventSynchronize"));
    while (!is_complete(*event)) std::this_thread::sleep_for(std::chrono::microseconds(50));
    return CUDA_SUCCESS;
  }
  static CUresult event_elapsed_time(float* ms, CUevent begin_event, CUevent end_event) {
    RP_RETURN_FAILURE(begin_in_context("cuEventElapsedTime"));
    for (const CUevent_st* event : {begin_event, end_event}) {
      if ((event->flags & CU_EVENT_DISABLE_TIMING) != 0 || event->cell->recorded.load() == 0)
        return CUDA_ERROR_INVALID_HANDLE;
      if (!is_complete(*event)) return CUDA_ERROR_NOT_READY;
    }
    *ms = 1;
    return CUDA_SUCCESS;
  }
  static CUresult ipc_get_event_handle(CUipcEventHandle* handle, CUevent event) {
    RP_RETURN_FAILURE(begin_in_context("cuIpcGetEventHandle"));
    return handle_of(*event, handle);
  }
  static CUresult ipc_open_event_handle(CUevent* event, CUipcEventHandle handle) {
    RP_RETURN_FAILURE(begin_in_context("cuIpcOpenEventHandle"));
    EventCell* cell = nullptr;
    RP_RETURN_FAILURE(cell_of(handle, t_context, &cell));
    *event = make_event(cell, CU_EVENT_DISABLE_TIMING);
    return CUDA_SUCCESS;
  }
};

CudaDriver fake_calls() {
  CudaDriver driver;
#define RP_FAKE_MEMBER(member, function) driver.member = &FakeCalls::member;
  RP_CUDA_FUNCTIONS(RP_FAKE_MEMBER)
#undef RP_FAKE_MEMBER
  return driver;
}

}  // namespace rp::test
