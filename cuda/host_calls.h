// cuda/host_calls.h
// Enqueues host functions that a stream calls in its order. The memory for their arguments is
// allocated at the start.
//
// The driver runs the functions in a thread of its own, one after the other. They must neither call
// the driver nor wait for anything that needs the GPU. (After a fault of the GPU the driver runs
// none.) One thread enqueues. The context must outlive this object. When it is destroyed, either
// the stream is idle or cancel() has been called.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/mutex.h"
#include "cuda/context.h"
#include "hoststore/sequence_word.h"

namespace rp {

class HostCalls {
 public:
  HostCalls(const CudaContext& context, CUstream stream);
  ~HostCalls();
  HostCalls(const HostCalls&) = delete;
  HostCalls& operator=(const HostCalls&) = delete;

  // Each call sleeps while kCapacity enqueued functions have not run yet. (The driver holds about
  // fifty; then it blocks the caller and also threads that enqueue on other streams.) Throws
  // rp::Error: kHang if the sleep takes kTimeoutNs, or the driver's error.
  void enqueue_publish(SequenceWord& word, std::uint64_t value);
  void enqueue_call(void (*function)(void*), void* argument);
  // Copies between two places in host memory.
  void enqueue_copy(std::byte* to, const std::byte* from, std::uint64_t bytes);

  // Wakes a thread that sleeps in one of these calls; from now on nothing is enqueued. Thread-safe.
  void stop();
  // Undoes stop(). REQUIRES: no thread calls this object.
  void resume() { queue_->is_stopped.store(false, std::memory_order_release); }
  // Functions that have not been called yet are never called, even if the stream reaches them,
  // because they may use objects that no longer exist. Returns when a function that is running has
  // returned. Thread-safe.
  void cancel();

 private:
  static constexpr std::uint64_t kCapacity = 32;
  static constexpr std::int64_t kTimeoutNs = 600 * kNsPerSecond;

  enum class Kind { kPublish, kCall, kCopy };
  struct Queue;
  struct Call {
    Queue* queue = nullptr;
    Kind kind = Kind::kCall;
    void* to = nullptr;  // or the word, or the function's argument
    const void* from = nullptr;
    std::uint64_t value = 0;  // bytes to copy, or the word's value
    void (*function)(void*) = nullptr;
  };

  // The data that the driver's thread reads. Outlives its owner if calls are still queued.
  struct Queue {
    Mutex mutex;  // held during a call
    bool is_cancelled RP_GUARDED_BY(mutex) = false;
    SequenceWord num_done{};  // writer: the driver's thread
    std::atomic<bool> is_stopped{false};
    std::array<Call, kCapacity> calls;
  };

  void enqueue(Call call);
  static void run(void* argument);

  const CudaContext& context_;
  CUstream stream_;
  std::uint64_t num_enqueued_ = 0;
  std::unique_ptr<Queue> queue_;
};

}  // namespace rp
