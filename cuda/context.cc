#include "cuda/context.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "common/text.h"

namespace rp {

namespace {

// The context that is current in this thread. No other code sets it.
thread_local CUcontext t_current = nullptr;

// Returns a table in which the functions that free resources do nothing. Those functions may wait
// for the GPU, or end the context that the resources belong to.
CudaDriver without_giving_back(CudaDriver driver) {
  driver.mem_free = [](CUdeviceptr) { return CUDA_SUCCESS; };
  driver.mem_free_host = [](void*) { return CUDA_SUCCESS; };
  driver.mem_host_unregister = [](void*) { return CUDA_SUCCESS; };
  driver.stream_destroy = [](CUstream) { return CUDA_SUCCESS; };
  driver.event_destroy = [](CUevent) { return CUDA_SUCCESS; };
  driver.primary_context_release = [](CUdevice) { return CUDA_SUCCESS; };
  return driver;
}

}  // namespace

std::string uuid_text(const CUuuid& uuid) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x",
                  static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[i])));
    text += digits.data();
  }
  return text;
}

CudaContext CudaContext::open(const CudaDriver& driver, const std::string& uuid) {
  int count = 0;
  check_cuda(driver, driver.device_get_count(&count), "counting GPUs");
  std::string seen;
  for (int i = 0; i < count; ++i) {
    CUdevice device = 0;
    CUuuid bytes{};
    check_cuda(driver, driver.device_get(&device, i), "looking for a GPU");
    check_cuda(driver, driver.device_get_uuid(&bytes, device), "asking a GPU for its UUID");
    const std::string found = uuid_text(bytes);
    seen += cat(seen.empty() ? "" : ", ", found);
    // The UUID of a part of a card begins with "MIG-"; the driver returns only the digits.
    if (!uuid.empty() && found.substr(found.find('-')) != uuid.substr(std::min(uuid.find('-'), uuid.size()))) continue;
    CUcontext context = nullptr;
    // Threads that wait for the GPU then sleep, which leaves the processor to other work.
    (void)driver.primary_context_set_flags(device, CU_CTX_SCHED_BLOCKING_SYNC);
    check_cuda(driver, driver.primary_context_retain(&context, device), cat("opening GPU ", found));
    return {driver, device, found, context};
  }
  throw Error(ExitCode::kNoResource, cat("no CUDA device: this process does not see GPU ", uuid.empty() ? "0" : uuid,
                                         "; it sees ", seen.empty() ? "none" : seen, "; look at CUDA_VISIBLE_DEVICES"));
}

CudaContext::CudaContext(const CudaDriver& driver, CUdevice device, std::string uuid, CUcontext context)
    : whole_(&driver),
      keeping_(std::make_unique<const CudaDriver>(without_giving_back(driver))),
      driver_(&driver),
      device_(device),
      uuid_(std::move(uuid)),
      context_(context) {}

CudaContext::CudaContext(CudaContext&& other) noexcept
    : whole_(other.whole_),
      keeping_(std::move(other.keeping_)),
      driver_(other.driver_.load()),
      device_(other.device_),
      uuid_(std::move(other.uuid_)),
      context_(std::exchange(other.context_, nullptr)) {}

CudaContext::~CudaContext() {
  if (context_ == nullptr) return;
  if (t_current == context_) t_current = nullptr;
  (void)driver().primary_context_release(device_);
}

void CudaContext::make_current() const {
  if (t_current == context_) return;
  check(driver().context_set_current(context_), "making the GPU's context current");
  t_current = context_;
}

std::string CudaContext::name() const {
  std::array<char, 128> text{};
  return driver().device_get_name(text.data(), static_cast<int>(text.size()), device_) == CUDA_SUCCESS ? text.data()
                                                                                                       : "GPU";
}

int CudaContext::attribute(CUdevice_attribute attribute) const {
  int value = 0;
  return driver().device_get_attribute(&value, attribute, device_) == CUDA_SUCCESS ? value : 0;
}

CudaContext::MemoryInfo CudaContext::memory_info() const {
  make_current();
  std::size_t free = 0;
  std::size_t total = 0;
  check(driver().mem_get_info(&free, &total), "asking for free memory");
  return {.free_bytes = free, .total_bytes = total};
}

void CudaContext::fail(CUresult result, const char* what) const {
  check_cuda(*whole_, result, cat("GPU ", uuid_, ": ", what));
  std::abort();
}

CudaEventHandle::CudaEventHandle(const CudaContext& context, unsigned flags) : context_(context) {
  context.make_current();
  context.check(context.driver().event_create(&event_, flags), "making an event");
}

CudaEventHandle CudaEventHandle::open(const CudaContext& context, const CUipcEventHandle& handle) {
  context.make_current();
  CUevent event = nullptr;
  context.check(
      context.driver().ipc_open_event_handle(&event, handle),
      "opening another process's event (it may take peer access between the cards; --signals memops does without)");
  return {context, event};
}

CudaEventHandle::~CudaEventHandle() {
  if (event_ != nullptr) (void)context_.driver().event_destroy(event_);
}

}  // namespace rp
