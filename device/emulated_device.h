// device/emulated_device.h
// Implements a device whose copies take the time of an emulated link, in real time, and move no
// data (docs/design/emulated-device.md).
//
// All uploads share one direction of the link; activations go before weights, or both in the order
// in which they were enqueued. Downloads have the other direction, and share one stream. The
// executor decides what is computed.
//
// Enqueueing never blocks. Operations that follow a copy (a signal or a call) are executed by a
// thread of the device, or immediately by the enqueueing thread if they are already due. They are
// never executed before their emulated time. They may be late by the time that it takes to wake a
// thread, but such delays do not add up: the next copy begins when the previous one ended in the
// model.
//
// Memory has addresses and no pages: touching it is a segmentation fault.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "common/mutex.h"
#include "device/copy_engine.h"
#include "device/cpu_device.h"
#include "device/device.h"

namespace rp {

struct EmulatedDeviceModel {
  std::string name = "sim";
  double upload_bytes_per_ns = 0;  // GB/s; 0: infinitely fast
  double download_bytes_per_ns = 0;
  std::int64_t activation_latency_ns = 0;  // of an uploaded activation, in addition to the time of its bytes
  std::int64_t copy_latency_ns = 0;        // of every other copy
  std::uint64_t memory_bytes = 0;          // 0: no limit
  bool activations_first = true;           // for uploads; if false, they go in the order in which they were enqueued
};

class EmulatedDevice : public Device {
 public:
  explicit EmulatedDevice(const EmulatedDeviceModel& model);
  ~EmulatedDevice() override;  // finishes all enqueued operations
  EmulatedDevice(const EmulatedDevice&) = delete;
  EmulatedDevice& operator=(const EmulatedDevice&) = delete;

  [[nodiscard]] std::string name() const override { return model_.name; }
  [[nodiscard]] DeviceMemory allocate(std::uint64_t bytes, MemoryUse use) override;
  [[nodiscard]] Stream& stream(StreamKind kind) override;

  // Returns the copy that a computation which uses this memory has to wait for, after
  // publish_waitable(): of the copies from or to this part of the device's memory that have begun,
  // the one that ends last; zeros if there is none.
  [[nodiscard]] CopyTimes last_copy(const std::byte* memory, std::uint64_t bytes);

 private:
  class EmulatedStream : public Stream {
   public:
    EmulatedStream(EmulatedDevice& device, StreamKind kind) : device_(device), kind_(kind) {}
    void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) override;
    void signal(SequenceWord& word, std::uint64_t value) override;
    void publish_waitable(SequenceWord& word, std::uint64_t value) override;
    void call(void (*function)(void*), void* argument) override;
    void drain() override;

   private:
    EmulatedDevice& device_;
    const StreamKind kind_;
  };
  void copy(StreamKind kind, const std::byte* memory, std::uint64_t bytes);
  void mark(StreamKind kind, CopyEngine::Mark mark);
  void drain(StreamKind kind);
  [[nodiscard]] CopyEngine& engine(StreamKind kind) RP_REQUIRES(mutex_) {
    return kind == StreamKind::kDownload ? download_ : upload_;
  }
  [[nodiscard]] std::optional<CopyEngine::Mark> pop_due() RP_REQUIRES(mutex_);
  // Executes all marks that are due, unless another thread is doing this; that thread then executes
  // them.
  void run_due() RP_REQUIRES(mutex_);
  void wake_timer() RP_REQUIRES(mutex_);
  void run_timer();

  const EmulatedDeviceModel model_;

  Mutex mutex_;
  CondVar done_;  // signaled when marks were executed
  std::uint64_t allocated_bytes_ RP_GUARDED_BY(mutex_) = 0;
  CopyEngine upload_ RP_GUARDED_BY(mutex_);
  CopyEngine download_ RP_GUARDED_BY(mutex_);
  bool runs_marks_ RP_GUARDED_BY(mutex_) = false;
  bool ends_ RP_GUARDED_BY(mutex_) = false;
  std::int64_t timer_ns_ RP_GUARDED_BY(mutex_) = 0;  // when the timer thread wakes without a signal
  std::atomic<std::uint32_t> timer_word_{0};  // a futex: changes when the timer thread has something to do earlier

  std::array<EmulatedStream, 3> streams_;
  InlineStream compute_;
  std::thread timer_;
};

}  // namespace rp
