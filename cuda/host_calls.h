// cuda/host_calls.h
// Host functions that a stream calls in its order, with memory for their arguments that is there from the start.
//
// The driver runs them in a thread of its own, one after the other; they must not call the driver. One thread enqueues. The
// context must outlive it, and the stream must be idle when it ends.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cuda/context.h"
#include "hoststore/sequence_word.h"

namespace rp {

class HostCalls {
 public:
  HostCalls(const CudaContext& context, CUstream stream);
  HostCalls(const HostCalls&) = delete;
  HostCalls& operator=(const HostCalls&) = delete;

  // Each sleeps while kCapacity of them have not run. Throws rp::Error: kHang if that takes kTimeoutNs, or what the driver says.
  void enqueue_publish(SequenceWord& word, std::uint64_t value);
  void enqueue_call(void (*function)(void*), void* argument);
  // Between two pieces of host memory.
  void enqueue_copy(std::byte* to, const std::byte* from, std::uint64_t bytes);

 private:
  static constexpr std::uint64_t kCapacity = 1024;
  static constexpr std::int64_t kTimeoutNs = 600 * kNsPerSecond;

  enum class Kind { kPublish, kCall, kCopy };
  struct Call {
    HostCalls* owner = nullptr;
    Kind kind = Kind::kCall;
    void* to = nullptr;          // or the word, or the function's argument
    const void* from = nullptr;
    std::uint64_t value = 0;     // bytes, or the word's
    void (*function)(void*) = nullptr;
  };

  void enqueue(Call call);
  static void run(void* call);

  const CudaContext& context_;
  CUstream stream_;
  std::uint64_t num_enqueued_ = 0;
  SequenceWord num_done_{};  // writer: the driver's thread
  std::array<Call, kCapacity> calls_;
};

}  // namespace rp
