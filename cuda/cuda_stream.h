// cuda/cuda_stream.h
// A stream of a GPU. What the host is told of its progress goes over a second stream beside it: a host function in the
// stream itself would hold up the copies behind it until a thread of the driver's has run it.
//
// Owned by the CudaDevice. One thread enqueues at a time, but for record() and wait_event(), which are for any thread.
// Context, arena and pinned memory must outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>

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

// A stream of the driver's. Move-only.
class CudaQueue {
 public:
  // `is_urgent`: its kernels go first where those of several wait. The driver knows no priorities among copies: what
  // must not wait for long copies is helped by cutting those (worker/copies/bulk_copies.h).
  CudaQueue(const CudaContext& context, bool is_urgent);
  CudaQueue(CudaQueue&& other) noexcept : context_(other.context_), stream_(other.stream_) { other.stream_ = nullptr; }
  CudaQueue& operator=(CudaQueue&&) = delete;
  ~CudaQueue();
  [[nodiscard]] CUstream get() const { return stream_; }
  // Returns true when all that was enqueued is done, false if it takes longer. Throws rp::Error with what the driver
  // says.
  [[nodiscard]] bool drain(std::int64_t timeout_ns) const;
  // Nothing of it is left to do, or ever will be done: the GPU has failed.
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
    std::function<void(const std::byte* data)> on_unregistered;  // a copy met such memory of the host
  };
  CudaStream(const CudaContext& context, const Memory& memory, bool is_urgent);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  // One of both is in the arena. Host memory that is not registered is copied through a pinned buffer, in the stream's
  // order.
  void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) override;
  void signal(SequenceWord& word, std::uint64_t value) override;
  void call(void (*function)(void*), void* argument) override;
  void call_in_order(void (*function)(void*), void* argument) override;
  void record(Event& event) override;
  void wait_event(const Event& event) override;
  void publish_waitable(SequenceWord& word, std::uint64_t value) override { word.publish(value); }
  // Throws rp::Error: kHang if that takes too long, or what the driver says.
  void drain() override;
  // What the driver says is no concern of a worker that gives up.
  [[nodiscard]] bool drain_within(std::int64_t timeout_ns) override;

  // No call of this class sleeps any longer for what is under way, and nothing more is enqueued for the host. Any
  // thread.
  void stop_calls();
  // What is enqueued for the host is not called any more. Any thread.
  void cancel_calls();
  [[nodiscard]] bool is_idle() const { return queue_.is_idle() && side_queue_.is_idle(); }
  // Throws rp::Error with what the driver says where the GPU has failed. Any thread.
  void check() const;

  [[nodiscard]] CUstream get() const { return queue_.get(); }
  [[nodiscard]] const CudaContext& context() const { return context_; }
  // Bytes that went through the pinned buffer. Any thread.
  [[nodiscard]] std::uint64_t staged_bytes() const { return staged_bytes_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::uint64_t kStageBytes = std::uint64_t{4} << 20;
  static constexpr std::int64_t kDrainNs = 60 * kNsPerSecond;

  void copy_staged(std::byte* to, const std::byte* from, std::uint64_t bytes, bool is_upload);
  void enqueue_copy(std::byte* to, const std::byte* from, std::uint64_t bytes);
  // The second stream comes after what is enqueued.
  HostCalls& beside();

  const CudaContext& context_;
  const Memory memory_;
  CudaQueue queue_;
  CudaQueue side_queue_;
  CudaEventHandle to_side_;
  HostCalls calls_;  // in the stream's own order
  HostCalls side_calls_;
  std::byte* stage_ = nullptr;
  std::atomic<std::uint64_t> staged_bytes_{0};
};

}  // namespace rp
