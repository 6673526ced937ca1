// device/cpu_device.h
// Implements a device on the processor itself: its memory belongs to this process, its copies are
// memcpy, and its streams are threads.
//
// The upload streams and the compute stream run in the threads that enqueue on them; the worker has
// one for each. Both kinds of downloads share one stream that has a thread of its own, because
// copies of outputs must not delay the thread that computes.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <thread>

#include "common/mutex.h"
#include "device/cpu_memory.h"
#include "device/device.h"

namespace rp {

// Executes each operation immediately, in the caller's thread.
class InlineStream : public Stream {
 public:
  void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) override;
  void signal(SequenceWord& word, std::uint64_t value) override;
  void call(void (*function)(void*), void* argument) override;
  void drain() override {}
};

// Executes operations in a thread of its own. Enqueueing blocks while the queue is full. Any thread
// may enqueue.
class ThreadStream : public Stream {
 public:
  explicit ThreadStream(const char* thread_name);
  ~ThreadStream() override;  // finishes all enqueued operations
  void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) override;
  void signal(SequenceWord& word, std::uint64_t value) override;
  void call(void (*function)(void*), void* argument) override;
  void drain() override;

 private:
  enum class Kind { kCopy, kSignal, kCall, kEnd };
  struct Operation {
    Kind kind = Kind::kEnd;
    void* to = nullptr;  // or the word, or the argument of the function
    const void* from = nullptr;
    std::uint64_t value = 0;  // number of bytes, or the word's value
    void (*function)(void*) = nullptr;
  };
  static constexpr std::uint64_t kCapacity = 256;

  void enqueue(const Operation& operation);
  void run(const char* thread_name);
  static void execute(const Operation& operation);

  Mutex mutex_;
  CondVar changed_;
  std::array<Operation, kCapacity> operations_ RP_GUARDED_BY(mutex_);
  std::uint64_t num_enqueued_ RP_GUARDED_BY(mutex_) = 0;
  std::uint64_t num_done_ RP_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

class CpuDevice : public Device {
 public:
  // `memory` is shared with LibTorch's tensors, which may outlive the device; with nullptr the
  // device makes its own.
  explicit CpuDevice(std::shared_ptr<CpuMemory> memory = nullptr);

  [[nodiscard]] std::string name() const override { return "cpu"; }
  [[nodiscard]] DeviceMemory allocate(std::uint64_t bytes, MemoryUse use) override;
  [[nodiscard]] bool allocates_zeros() const override { return true; }
  void prepare(std::uint64_t bytes, MemoryUse use) override { memory_->prepare_buffer(bytes, use); }
  [[nodiscard]] DeviceMemoryPeaks memory_peaks() const override { return memory_->peaks(); }
  [[nodiscard]] Stream& stream(StreamKind kind) override;

 private:
  const std::shared_ptr<CpuMemory> memory_;
  InlineStream upload_parameters_;
  InlineStream upload_activations_;
  InlineStream compute_;
  ThreadStream download_{"rp-download"};
};

}  // namespace rp
