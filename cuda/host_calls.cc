#include "cuda/host_calls.h"

#include <atomic>
#include <cstring>

#include "common/text.h"

namespace rp {

namespace {

const std::atomic<bool> kNeverStop{false};

}  // namespace

HostCalls::HostCalls(const CudaContext& context, CUstream stream) : context_(context), stream_(stream) {}

void HostCalls::enqueue_publish(SequenceWord& word, std::uint64_t value) {
  enqueue({.owner = this, .kind = Kind::kPublish, .to = &word, .value = value});
}

void HostCalls::enqueue_call(void (*function)(void*), void* argument) {
  enqueue({.owner = this, .kind = Kind::kCall, .to = argument, .function = function});
}

void HostCalls::enqueue_copy(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  enqueue({.owner = this, .kind = Kind::kCopy, .to = to, .from = from, .value = bytes});
}

void HostCalls::enqueue(Call call) {
  if (num_enqueued_ >= kCapacity &&
      num_done_.wait_at_least(num_enqueued_ + 1 - kCapacity, {&kNeverStop, kTimeoutNs}) != WaitResult::kReached) {
    throw Error(ExitCode::kHang, cat("GPU ", context_.uuid(), " did none of ", kCapacity, " queued calls in ",
                                     kTimeoutNs / kNsPerSecond, " s"));
  }
  Call& place = calls_[num_enqueued_ % kCapacity];
  place = call;
  context_.check(context_.driver().launch_host_func(stream_, &HostCalls::run, &place), "enqueueing a host function");
  ++num_enqueued_;
}

void HostCalls::run(void* argument) {
  const Call call = *static_cast<Call*>(argument);
  // The place is free before the call: what it publishes may end the run, and this object with it.
  SequenceWord& done = call.owner->num_done_;
  done.publish(done.observe() + 1);
  switch (call.kind) {
    case Kind::kPublish: static_cast<SequenceWord*>(call.to)->publish(call.value); return;
    case Kind::kCall: call.function(call.to); return;
    case Kind::kCopy: std::memcpy(call.to, call.from, call.value); return;
  }
}

}  // namespace rp
