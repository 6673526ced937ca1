#include "device/cpu_device.h"

#include <pthread.h>

#include <cstring>
#include <utility>

#include "common/check.h"

namespace rp {

void InlineStream::copy(std::byte* to, const std::byte* from, std::uint64_t bytes) { std::memcpy(to, from, bytes); }
void InlineStream::signal(SequenceWord& word, std::uint64_t value) { word.publish(value); }
void InlineStream::call(void (*function)(void*), void* argument) { function(argument); }

ThreadStream::ThreadStream(const char* thread_name) : thread_([this, thread_name] { run(thread_name); }) {}

ThreadStream::~ThreadStream() {
  enqueue({.kind = Kind::kEnd});
  thread_.join();
}

void ThreadStream::copy(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  enqueue({.kind = Kind::kCopy, .to = to, .from = from, .value = bytes});
}

void ThreadStream::signal(SequenceWord& word, std::uint64_t value) {
  enqueue({.kind = Kind::kSignal, .to = &word, .value = value});
}

void ThreadStream::call(void (*function)(void*), void* argument) {
  enqueue({.kind = Kind::kCall, .to = argument, .function = function});
}

void ThreadStream::drain() {
  MutexLock lock(mutex_);
  const std::uint64_t target = num_enqueued_;
  while (num_done_ < target) changed_.wait(mutex_);
}

void ThreadStream::enqueue(const Operation& operation) {
  MutexLock lock(mutex_);
  while (num_enqueued_ - num_done_ == kCapacity) changed_.wait(mutex_);
  operations_[num_enqueued_ % kCapacity] = operation;
  ++num_enqueued_;
  changed_.notify_all();
}

void ThreadStream::run(const char* thread_name) {
  pthread_setname_np(pthread_self(), thread_name);
  while (true) {
    Operation operation;
    {
      MutexLock lock(mutex_);
      while (num_done_ == num_enqueued_) changed_.wait(mutex_);
      operation = operations_[num_done_ % kCapacity];
    }
    if (operation.kind == Kind::kEnd) return;
    execute(operation);
    MutexLock lock(mutex_);
    ++num_done_;
    changed_.notify_all();
  }
}

void ThreadStream::execute(const Operation& operation) {
  switch (operation.kind) {
    case Kind::kCopy: std::memcpy(operation.to, operation.from, operation.value); return;
    case Kind::kSignal: static_cast<SequenceWord*>(operation.to)->publish(operation.value); return;
    case Kind::kCall: operation.function(operation.to); return;
    case Kind::kEnd: return;
  }
}

CpuDevice::CpuDevice(std::shared_ptr<CpuMemory> memory)
    : memory_(memory ? std::move(memory) : std::make_shared<CpuMemory>()) {}

DeviceMemory CpuDevice::allocate(std::uint64_t bytes, MemoryUse use) {
  if (bytes == 0) return {};
  return {
      memory_->allocate_buffer(bytes, use), bytes,
      [memory = memory_.get(), use](std::byte* data, std::uint64_t given) { memory->free_buffer(data, given, use); }};
}

Stream& CpuDevice::stream(StreamKind kind) {
  switch (kind) {
    case StreamKind::kUploadParameters: return upload_parameters_;
    case StreamKind::kUploadActivations: return upload_activations_;
    case StreamKind::kDownload:
    case StreamKind::kDownloadGradients: return download_;
    case StreamKind::kCompute: return compute_;
  }
  RP_ASSERT(false);
}

}  // namespace rp
