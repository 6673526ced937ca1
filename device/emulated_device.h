// device/emulated_device.h
// A device whose copies take the time that a link would take, in real time, and move nothing
// (docs/design/emulated-device.md).
//
// Uploads share one direction of the link, activations before weights or in turn; downloads have the other, in one
// stream. What is computed is its executor's. Enqueueing never waits. What follows a copy, a signal or a call, happens
// in one thread of the device's, or at once in the enqueueing thread where it is due already. Never before its emulated
// time; later by what waking a thread costs, which does not add up: the next copy begins when the one before ended in
// the model.
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
  std::int64_t activation_latency_ns = 0;  // of an uploaded activation, beyond its bytes
  std::int64_t copy_latency_ns = 0;        // of each other copy
  std::uint64_t memory_bytes = 0;          // 0: without a limit
  bool activations_first = true;           // uploads; else in the order of their enqueueing
};

class EmulatedDevice : public Device {
 public:
  explicit EmulatedDevice(const EmulatedDeviceModel& model);
  ~EmulatedDevice() override;  // finishes what is enqueued
  EmulatedDevice(const EmulatedDevice&) = delete;
  EmulatedDevice& operator=(const EmulatedDevice&) = delete;

  [[nodiscard]] std::string name() const override { return model_.name; }
  [[nodiscard]] DeviceMemory allocate(std::uint64_t bytes, MemoryUse use) override;
  [[nodiscard]] Stream& stream(StreamKind kind) override;

  // What a computation waits for that needs this memory, after publish_waitable(): of the copies from or to this part
  // of the device's memory that began, the one that ends last; zeros if there is none.
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
  // Does what is due, unless another thread is at it: that one goes on with it.
  void run_due() RP_REQUIRES(mutex_);
  void wake_timer() RP_REQUIRES(mutex_);
  void run_timer();

  const EmulatedDeviceModel model_;

  Mutex mutex_;
  CondVar done_;  // marks
  std::uint64_t allocated_bytes_ RP_GUARDED_BY(mutex_) = 0;
  CopyEngine upload_ RP_GUARDED_BY(mutex_);
  CopyEngine download_ RP_GUARDED_BY(mutex_);
  bool runs_marks_ RP_GUARDED_BY(mutex_) = false;
  bool ends_ RP_GUARDED_BY(mutex_) = false;
  std::int64_t timer_ns_ RP_GUARDED_BY(mutex_) = 0;  // when the timer thread wakes by itself
  std::atomic<std::uint32_t> timer_word_{0};         // a futex: the timer thread has something earlier to do

  std::array<EmulatedStream, 3> streams_;
  InlineStream compute_;
  std::thread timer_;
};

}  // namespace rp
