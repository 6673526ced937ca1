#include "cuda/host_calls.h"

#include <cstring>
#include <utility>
#include <vector>

#include "common/text.h"

namespace rp {

HostCalls::HostCalls(const CudaContext& context, CUstream stream)
    : context_(context), stream_(stream), queue_(std::make_unique<Queue>()) {}

// The driver's thread may still run calls that are enqueued, until the process ends. So their queue
// is never freed.
HostCalls::~HostCalls() {
  static Mutex mutex;
  static auto* const kept = new std::vector<std::unique_ptr<Queue>>();
  {
    MutexLock lock(queue_->mutex);
    if (queue_->num_done.observe() == num_enqueued_) return;
  }
  MutexLock lock(mutex);
  kept->push_back(std::move(queue_));
}

void HostCalls::stop() {
  queue_->is_stopped.store(true, std::memory_order_release);
  queue_->num_done.wake();
}

void HostCalls::cancel() {
  MutexLock lock(queue_->mutex);
  queue_->is_cancelled = true;
}

void HostCalls::enqueue_publish(SequenceWord& word, std::uint64_t value) {
  enqueue({.queue = queue_.get(), .kind = Kind::kPublish, .to = &word, .value = value});
}

void HostCalls::enqueue_call(void (*function)(void*), void* argument) {
  enqueue({.queue = queue_.get(), .kind = Kind::kCall, .to = argument, .function = function});
}

void HostCalls::enqueue_copy(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  enqueue({.queue = queue_.get(), .kind = Kind::kCopy, .to = to, .from = from, .value = bytes});
}

void HostCalls::enqueue(Call call) {
  const WaitResult has_place =
      num_enqueued_ < kCapacity
          ? WaitResult::kReached
          : queue_->num_done.wait_at_least(num_enqueued_ + 1 - kCapacity, {&queue_->is_stopped, kTimeoutNs});
  if (has_place == WaitResult::kStopped) return;
  if (has_place == WaitResult::kTimedOut) {
    throw Error(ExitCode::kHang, cat("GPU ", context_.uuid(), " did none of ", kCapacity, " queued calls in ",
                                     kTimeoutNs / kNsPerSecond, " s"));
  }
  Call& place = queue_->calls[num_enqueued_ % kCapacity];
  place = call;
  context_.check(context_.driver().launch_host_func(stream_, &HostCalls::run, &place), "enqueueing a host function");
  ++num_enqueued_;
}

void HostCalls::run(void* argument) {
  const Call call = *static_cast<Call*>(argument);
  Queue& queue = *call.queue;
  MutexLock lock(queue.mutex);
  queue.num_done.publish(queue.num_done.observe() + 1);  // the entry may be reused
  if (queue.is_cancelled) return;
  switch (call.kind) {
    case Kind::kPublish: static_cast<SequenceWord*>(call.to)->publish(call.value); return;
    case Kind::kCall: call.function(call.to); return;
    case Kind::kCopy: std::memcpy(call.to, call.from, call.value); return;
  }
}

}  // namespace rp
