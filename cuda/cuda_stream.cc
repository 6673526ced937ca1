#include "cuda/cuda_stream.h"

#include <algorithm>
#include <thread>

#include "common/system/clock.h"
#include "common/text.h"

namespace rp {

// CudaQueue

CudaQueue::CudaQueue(const CudaContext& context, bool is_urgent) : context_(context) {
  context.make_current();
  int least = 0;
  int greatest = 0;
  context.check(context.driver().stream_priority_range(&least, &greatest), "asking for the priorities of streams");
  context.check(context.driver().stream_create(&stream_, CU_STREAM_NON_BLOCKING, is_urgent ? greatest : least),
                "making a stream");
}

CudaQueue::~CudaQueue() {
  if (stream_ != nullptr) (void)context_.driver().stream_destroy(stream_);
}

// The driver's own wait has no time limit.
bool CudaQueue::drain(std::int64_t timeout_ns) const {
  context_.make_current();
  const Deadline deadline = Deadline::after_ns(timeout_ns);
  CUresult result = CUDA_SUCCESS;
  while ((result = context_.driver().stream_query(stream_)) == CUDA_ERROR_NOT_READY) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  context_.check(result, "waiting for the GPU");
  return true;
}

bool CudaQueue::is_idle() const {
  try {
    context_.make_current();
  } catch (const Error&) {
    return true;
  }
  return context_.driver().stream_query(stream_) != CUDA_ERROR_NOT_READY;
}

// CudaStream

CudaStream::CudaStream(const CudaContext& context, const Memory& memory, bool is_urgent)
    : context_(context),
      memory_(memory),
      queue_(context, is_urgent),
      side_queue_(context, is_urgent),
      to_side_(context),
      calls_(context, queue_.get()),
      side_calls_(context, side_queue_.get()) {
  void* stage = nullptr;
  context.check(context.driver().mem_host_alloc(&stage, kStageBytes, CU_MEMHOSTALLOC_PORTABLE),
                "taking pinned memory for copies");
  stage_ = static_cast<std::byte*>(stage);
}

CudaStream::~CudaStream() { (void)context_.driver().mem_free_host(stage_); }

void CudaStream::enqueue_copy(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  context_.check(context_.driver().memcpy_async(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from),
                                                bytes, get()),
                 "enqueueing a copy");
}

void CudaStream::copy(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  context_.make_current();
  const bool is_upload = memory_.arena.holds(to);
  // A copy never crosses the end of a registered piece, because the driver refuses such copies.
  for (std::uint64_t at = 0; at < bytes;) {
    const PinnedMemory::Extent extent = memory_.pinned.extent(is_upload ? from + at : to + at, bytes - at);
    if (extent.is_registered) {
      enqueue_copy(to + at, from + at, extent.bytes);
    } else {
      memory_.on_unregistered(is_upload ? from + at : to + at);
      copy_staged(to + at, from + at, extent.bytes, is_upload);
    }
    at += extent.bytes;
  }
}

// Only the order of the stream protects the staging buffer.
void CudaStream::copy_staged(std::byte* to, const std::byte* from, std::uint64_t bytes, bool is_upload) {
  staged_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  for (std::uint64_t at = 0; at < bytes; at += kStageBytes) {
    const std::uint64_t piece = std::min(kStageBytes, bytes - at);
    if (is_upload) {
      calls_.enqueue_copy(stage_, from + at, piece);
      enqueue_copy(to + at, stage_, piece);
    } else {
      enqueue_copy(stage_, from + at, piece);
      calls_.enqueue_copy(to + at, stage_, piece);
    }
  }
}

HostCalls& CudaStream::beside() {
  context_.make_current();
  const CudaDriver& driver = context_.driver();
  context_.check(driver.event_record(to_side_.get(), get()), "recording an event");
  context_.check(driver.stream_wait_event(side_queue_.get(), to_side_.get(), CU_EVENT_WAIT_DEFAULT),
                 "waiting for an event");
  return side_calls_;
}

void CudaStream::signal(SequenceWord& word, std::uint64_t value) { beside().enqueue_publish(word, value); }

void CudaStream::call(void (*function)(void*), void* argument) { beside().enqueue_call(function, argument); }

void CudaStream::call_in_order(void (*function)(void*), void* argument) {
  context_.make_current();
  calls_.enqueue_call(function, argument);
}

void CudaStream::record(Event& event) {
  context_.make_current();
  context_.check(context_.driver().event_record(static_cast<CudaEvent&>(event).handle.get(), get()),
                 "recording an event");
}

void CudaStream::wait_event(const Event& event) {
  context_.make_current();
  context_.check(context_.driver().stream_wait_event(get(), static_cast<const CudaEvent&>(event).handle.get(),
                                                     CU_EVENT_WAIT_DEFAULT),
                 "waiting for an event");
}

void CudaStream::resume_calls() {
  calls_.resume();
  side_calls_.resume();
}

void CudaStream::stop_calls() {
  calls_.stop();
  side_calls_.stop();
}

void CudaStream::cancel_calls() {
  calls_.cancel();
  side_calls_.cancel();
}

void CudaStream::check() const {
  context_.make_current();
  const CUresult result = context_.driver().stream_query(get());
  if (result != CUDA_ERROR_NOT_READY) context_.check(result, "computing");
}

void CudaStream::drain() {
  if (queue_.drain(kDrainNs) && side_queue_.drain(kDrainNs)) return;
  throw Error(ExitCode::kHang, cat("GPU ", context_.uuid(), " did not end its work within ", kDrainNs / kNsPerSecond,
                                   " s; it may wait for a worker that is gone"));
}

bool CudaStream::drain_within(std::int64_t timeout_ns) {
  try {
    return queue_.drain(timeout_ns) && side_queue_.drain(timeout_ns);
  } catch (const Error&) {
    return false;
  }
}

}  // namespace rp
