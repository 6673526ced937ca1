#include "tests/cuda/fake_driver/fake_streams.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "common/check.h"

namespace rp::test {

namespace {

using Kind = FakeOperation::Kind;

thread_local bool t_is_in_host_function = false;

}  // namespace

bool FakeStreams::is_in_host_function() { return t_is_in_host_function; }

FakeStreams::FakeStreams(unsigned seed, int max_delay_us)
    : max_delay_us_(max_delay_us), random_(seed), thread_([this] { run(); }) {}

FakeStreams::~FakeStreams() { stop(); }

void FakeStreams::stop() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

CUstream FakeStreams::create(CUcontext context) {
  const std::lock_guard lock(mutex_);
  streams_.push_back(std::make_unique<CUstream_st>(CUstream_st{.context = context}));
  return streams_.back().get();
}

void FakeStreams::destroy(CUstream stream) {
  const std::lock_guard lock(mutex_);
  RP_ASSERT(!std::exchange(stream->is_destroyed, true));
}

void FakeStreams::enqueue(CUstream stream, const FakeOperation& operation, std::string text) {
  const std::lock_guard lock(mutex_);
  RP_ASSERT(!stream->is_destroyed);
  stream->operations.push_back(operation);
  stream->log.push_back(std::move(text));
  changed_.notify_all();
}

void FakeStreams::enqueue_record(CUstream stream, const CUevent_st& event) {
  const std::lock_guard lock(mutex_);
  RP_ASSERT(!stream->is_destroyed);
  const std::uint64_t number = event.cell->recorded.fetch_add(1, std::memory_order_acq_rel) + 1;
  stream->operations.push_back({.kind = Kind::kRecord, .value = number, .cell = event.cell});
  stream->log.push_back("record e" + std::to_string(event.number));
  changed_.notify_all();
}

bool FakeStreams::is_idle(CUstream stream) {
  const std::lock_guard lock(mutex_);
  return stream->operations.empty();
}

void FakeStreams::wait_until_idle(CUcontext context) {
  std::unique_lock lock(mutex_);
  const auto is_idle = [&] {
    return ends_ || std::all_of(streams_.begin(), streams_.end(), [&](const auto& stream) {
             return stream->context != context || stream->operations.empty();
           });
  };
  // Fails if memory is freed while a stream never becomes idle.
  RP_ASSERT(changed_.wait_for(lock, std::chrono::seconds(30), is_idle));
}

std::vector<std::vector<std::string>> FakeStreams::log() {
  const std::lock_guard lock(mutex_);
  std::vector<std::vector<std::string>> result;
  for (const auto& stream : streams_) result.push_back(stream->log);
  return result;
}

void FakeStreams::clear_log() {
  const std::lock_guard lock(mutex_);
  for (const auto& stream : streams_) stream->log.clear();
}

void FakeStreams::hold(int stream, bool is_held) {
  const std::lock_guard lock(mutex_);
  streams_.at(stream)->is_held = is_held;
  changed_.notify_all();
}

// Returns true if the stream's first operation can run.
bool FakeStreams::can_run(CUstream_st& stream) {
  if (stream.is_held || stream.is_running || stream.operations.empty()) return false;
  const FakeOperation& first = stream.operations.front();
  // Its words and events may no longer exist, and the operations after it have no effect that could
  // be observed.
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

void FakeStreams::execute(const FakeOperation& operation) {
  switch (operation.kind) {
    case Kind::kCopy: std::memcpy(operation.to, operation.from, operation.value); return;
    case Kind::kSet: std::memset(operation.to, 0, operation.value); return;
    case Kind::kRecord: operation.cell->completed.store(operation.value, std::memory_order_release); return;
    case Kind::kWrite:
      static_cast<std::atomic<std::uint64_t>*>(operation.to)->store(operation.value, std::memory_order_release);
      return;
    case Kind::kCall:
      t_is_in_host_function = true;
      operation.function(operation.to);
      t_is_in_host_function = false;
      return;
    case Kind::kWait:
    case Kind::kWaitValue: return;
  }
}

void FakeStreams::run() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    std::vector<CUstream_st*> ready;
    for (const auto& stream : streams_) {
      if (can_run(*stream)) ready.push_back(stream.get());
    }
    if (ready.empty()) {
      // Words and events of other processes change without a call of this driver.
      changed_.wait_for(lock, std::chrono::microseconds(100));
      continue;
    }
    CUstream_st& stream = *ready[random_() % ready.size()];
    const FakeOperation operation = stream.operations.front();
    const int delay_us = max_delay_us_ > 0 ? static_cast<int>(random_() % static_cast<unsigned>(max_delay_us_)) : 0;
    stream.is_running = true;
    lock.unlock();
    if (delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    execute(operation);
    lock.lock();
    stream.is_running = false;
    stream.operations.pop_front();
    if (stream.operations.empty()) changed_.notify_all();
  }
}

}  // namespace rp::test
