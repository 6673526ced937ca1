// cuda/host_calls.h
// Host functions that a stream calls in its order, with memory for their arguments that is there from the start.
//
// The driver runs them in a thread of its own, one after the other: they must neither call the driver nor wait for
// anything that needs the GPU. (It runs none after a fault of the GPU.) One thread enqueues. The context must outlive
// it, and when it ends, the stream must be idle or cancel() have been called.
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

  // Each sleeps while kCapacity of them have not run. (A driver holds some fifty, then it blocks its caller, and with
  // it whoever enqueues on another stream.) Throws rp::Error: kHang if that takes kTimeoutNs, or what the driver says.
  void enqueue_publish(SequenceWord& word, std::uint64_t value);
  void enqueue_call(void (*function)(void*), void* argument);
  // Between two pieces of host memory.
  void enqueue_copy(std::byte* to, const std::byte* from, std::uint64_t bytes);

  // Who sleeps goes on, and nothing more is enqueued. Any thread.
  void stop();
  // What has not been called yet never is, whenever the stream gets there: it may be about what is gone by then.
  // Returns when what is being called is over. Any thread.
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
    std::uint64_t value = 0;  // bytes, or the word's
    void (*function)(void*) = nullptr;
  };

  // What the driver's thread reads. Outlives its owner where calls are still queued.
  struct Queue {
    Mutex mutex;  // held during a call
    bool is_cancelled RP_GUARDED_BY(mutex) = false;
    SequenceWord num_done{};  // writer: the driver's thread
    std::atomic<bool> is_stopped{false};
    std::array<Call, kCapacity> calls;
  };

  void enqueue(Call call);
  static void run(void* call);

  const CudaContext& context_;
  CUstream stream_;
  std::uint64_t num_enqueued_ = 0;
  std::unique_ptr<Queue> queue_;
};

}  // namespace rp
