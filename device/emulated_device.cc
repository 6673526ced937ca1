#include "device/emulated_device.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "common/check.h"
#include "common/system/clock.h"
#include "common/system/futex.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

// The index of the stream in its engine. Urgent streams come first.
int place_of(StreamKind kind) { return kind == StreamKind::kUploadParameters ? 1 : 0; }

}  // namespace

void EmulatedDevice::EmulatedStream::copy(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  device_.copy(kind_, kind_ == StreamKind::kDownload ? from : to, bytes);
}

void EmulatedDevice::EmulatedStream::signal(SequenceWord& word, std::uint64_t value) {
  device_.mark(kind_, {.target = &word, .value = value});
}

void EmulatedDevice::EmulatedStream::publish_waitable(SequenceWord& word, std::uint64_t value) {
  device_.mark(kind_, {.target = &word, .value = value, .is_early = true});
}

void EmulatedDevice::EmulatedStream::call(void (*function)(void*), void* argument) {
  device_.mark(kind_, {.target = argument, .function = function});
}

void EmulatedDevice::EmulatedStream::drain() { device_.drain(kind_); }

EmulatedDevice::EmulatedDevice(const EmulatedDeviceModel& model)
    : model_(model),
      upload_(model.upload_bytes_per_ns, {model.activation_latency_ns, model.copy_latency_ns}, model.activations_first),
      download_(model.download_bytes_per_ns, {model.copy_latency_ns}),
      streams_{EmulatedStream(*this, StreamKind::kUploadParameters),
               EmulatedStream(*this, StreamKind::kUploadActivations), EmulatedStream(*this, StreamKind::kDownload)},
      timer_([this] { run_timer(); }) {}

EmulatedDevice::~EmulatedDevice() {
  {
    MutexLock lock(mutex_);
    ends_ = true;
    wake_timer();
  }
  timer_.join();
}

DeviceMemory EmulatedDevice::allocate(std::uint64_t bytes, MemoryUse) {
  if (bytes == 0) return {};
  MutexLock lock(mutex_);
  if (model_.memory_bytes > 0 && bytes > model_.memory_bytes - std::min(allocated_bytes_, model_.memory_bytes)) {
    throw Error(ExitCode::kNoResource,
                cat(model_.name, " has ", bytes_text(model_.memory_bytes), " of memory, of which ",
                    bytes_text(allocated_bytes_), " are taken; ", bytes_text(bytes),
                    " more are needed: use smaller stages (--plan) or shorter sequences"));
  }
  void* data = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    throw Error(ExitCode::kNoResource, cat("no addresses for ", bytes_text(bytes), " of an emulated device's memory: ",
                                           errno_text(errno), "; raise `ulimit -v`"));
  }
  allocated_bytes_ += bytes;
  return {static_cast<std::byte*>(data), bytes, [this](std::byte* memory, std::uint64_t length) {
            munmap(memory, length);
            MutexLock release_lock(mutex_);
            allocated_bytes_ -= length;
          }};
}

Stream& EmulatedDevice::stream(StreamKind kind) {
  switch (kind) {
    case StreamKind::kUploadParameters: return streams_[0];
    case StreamKind::kUploadActivations: return streams_[1];
    case StreamKind::kDownload:
    case StreamKind::kDownloadGradients: return streams_[2];
    case StreamKind::kCompute: return compute_;
  }
  RP_ASSERT(false);
}

// Enqueueing

void EmulatedDevice::copy(StreamKind kind, const std::byte* memory, std::uint64_t bytes) {
  MutexLock lock(mutex_);
  engine(kind).enqueue_copy(place_of(kind), {.memory = memory, .bytes = bytes}, now_ns());
}

void EmulatedDevice::mark(StreamKind kind, CopyEngine::Mark mark) {
  mark.stream = place_of(kind);
  MutexLock lock(mutex_);
  engine(kind).enqueue_mark(mark, now_ns());
  run_due();
  if (engine(kind).next_due_ns() < timer_ns_) wake_timer();
}

void EmulatedDevice::drain(StreamKind kind) {
  std::atomic<bool> is_drained{false};
  mark(kind,
       {.target = &is_drained, .function = [](void* flag) { static_cast<std::atomic<bool>*>(flag)->store(true); }});
  MutexLock lock(mutex_);
  while (!is_drained.load()) done_.wait(mutex_);
}

CopyTimes EmulatedDevice::last_copy(const std::byte* memory, std::uint64_t bytes) {
  MutexLock lock(mutex_);
  const std::int64_t now = now_ns();
  const CopyTimes upload = upload_.last_copy({memory, bytes}, now),
                  download = download_.last_copy({memory, bytes}, now);
  return upload.end_ns >= download.end_ns ? upload : download;
}

// Marks that are due

std::optional<CopyEngine::Mark> EmulatedDevice::pop_due() {
  const std::int64_t now = now_ns();
  std::optional<CopyEngine::Mark> mark = upload_.pop_due(now);
  return mark ? mark : download_.pop_due(now);
}

void EmulatedDevice::run_due() {
  if (runs_marks_) return;
  runs_marks_ = true;
  bool any = false;
  while (const std::optional<CopyEngine::Mark> mark = pop_due()) {
    mutex_.unlock();
    if (mark->function != nullptr) {
      mark->function(mark->target);
    } else {
      static_cast<SequenceWord*>(mark->target)->publish(mark->value);
    }
    mutex_.lock();
    any = true;
  }
  runs_marks_ = false;
  if (any) done_.notify_all();
}

void EmulatedDevice::wake_timer() {
  timer_word_.fetch_add(1, std::memory_order_release);
  futex_wake_all(&timer_word_);
}

void EmulatedDevice::run_timer() {
  pthread_setname_np(pthread_self(), "rp-sim-copies");
  wake_this_thread_on_time();
  MutexLock lock(mutex_);
  while (true) {
    run_due();
    timer_ns_ = std::min(upload_.next_due_ns(), download_.next_due_ns());
    if (ends_ && timer_ns_ == INT64_MAX && !runs_marks_) return;
    const std::int64_t timer_ns = timer_ns_;
    const std::uint32_t seen = timer_word_.load(std::memory_order_acquire);
    mutex_.unlock();
    futex_wait_until(&timer_word_, seen, timer_ns);
    mutex_.lock();
  }
}

}  // namespace rp
