// cuda/cuda_stream.h
// Implements Stream on a GPU. It reports its progress to the host over a second stream, because a
// host function in the stream itself would delay the copies after it until a thread of the driver
// has run the function.
//
// Owned by the CudaDevice. Only one thread may enqueue at a time, except that record() and
// wait_event() are thread-safe. Context, arena and pinned memory must outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "cuda/context.h"
#include "cuda/device_arena.h"
#include "cuda/host_calls.h"
#include "cuda/pinned_memory.h"
#include "device/device.h"

namespace rp {

class CudaEvent : public Event {
 public:
  explicit CudaEvent(const CudaContext& context) : handle(context) {}
  CudaEventHandle handle;
};

// A stream of the driver. Move-only.
class CudaQueue {
 public:
  // `is_urgent`: its kernels run first if kernels of several streams are waiting. The driver has no
  // priorities for copies; instead, long copies are cut so that others can pass them
  // (worker/copies/bulk_copies.h).
  CudaQueue(const CudaContext& context, bool is_urgent);
  CudaQueue(CudaQueue&& other) noexcept : context_(other.context_), stream_(other.stream_) { other.stream_ = nullptr; }
  CudaQueue& operator=(CudaQueue&&) = delete;
  ~CudaQueue();
  [[nodiscard]] CUstream get() const { return stream_; }
  // Waits until everything that was enqueued is done. Returns false if that takes longer than the
  // time limit. Throws rp::Error with the driver's message.
  [[nodiscard]] bool drain(std::int64_t timeout_ns) const;
  // Returns true if the stream has nothing left to do, or if the GPU has failed and will do nothing
  // more.
  [[nodiscard]] bool is_idle() const;

 private:
  const CudaContext& context_;
  CUstream stream_ = nullptr;
};

class CudaStream : public Stream {
 public:
  struct Memory {
    const DeviceArena& arena;
    const PinnedMemory& pinned;
    std::function<void(const std::byte* data)> on_unregistered;  // called when a copy meets unregistered host memory
  };
  CudaStream(const CudaContext& context, const Memory& memory, bool is_urgent);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  // Exactly one of `to` and `from` is in the arena. Unregistered host memory is copied through a
  // pinned buffer, in the order of the stream.
  void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) override;
  void signal(SequenceWord& word, std::uint64_t value) override;
  void call(void (*function)(void*), void* argument) override;
  void call_in_order(void (*function)(void*), void* argument) override;
  void record(Event& event) override;
  void wait_event(const Event& event) override;
  void publish_waitable(SequenceWord& word, std::uint64_t value) override { word.publish(value); }
  [[nodiscard]] CUstream_st* driver_stream() const override { return get(); }
  // Throws rp::Error: kHang if it takes too long, or the driver's error.
  void drain() override;
  // Returns false if the driver reports an error, which does not matter to a worker that gives up.
  [[nodiscard]] bool drain_within(std::int64_t timeout_ns) override;

  // From now on no call of this class sleeps until operations in progress are done, and nothing
  // more is enqueued for the host. Thread-safe.
  void stop_calls();
  // Undoes stop_calls(). REQUIRES: the stream is drained, and no thread uses it.
  void resume_calls();
  // From now on no function that is enqueued for the host is called. Thread-safe.
  void cancel_calls();
  [[nodiscard]] bool is_idle() const { return queue_.is_idle() && side_queue_.is_idle(); }
  // Throws rp::Error with the driver's message if the GPU has failed. Thread-safe.
  void check() const;

  [[nodiscard]] CUstream get() const { return queue_.get(); }
  [[nodiscard]] const CudaContext& context() const { return context_; }
  // Returns the number of bytes that went through the pinned buffer. Thread-safe.
  [[nodiscard]] std::uint64_t staged_bytes() const { return staged_bytes_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::uint64_t kStageBytes = std::uint64_t{4} << 20;
  static constexpr std::int64_t kDrainNs = 60 * kNsPerSecond;

  void copy_staged(std::byte* to, const std::byte* from, std::uint64_t bytes, bool is_upload);
  void enqueue_copy(std::byte* to, const std::byte* from, std::uint64_t bytes);
  // Makes the second stream wait for everything that is enqueued so far, and returns its host
  // calls.
  HostCalls& beside();

  const CudaContext& context_;
  const Memory memory_;
  CudaQueue queue_;
  CudaQueue side_queue_;
  CudaEventHandle to_side_;
  HostCalls calls_;  // in the order of the stream itself
  HostCalls side_calls_;
  std::byte* stage_ = nullptr;
  std::atomic<std::uint64_t> staged_bytes_{0};
};

}  // namespace rp
