// device/device.h
// Defines a device as the protocol sees it: memory, streams, copies and signals, all of plain
// bytes. The StageExecutor decides what is computed on it.
//
// Owned by the worker. Each kind of stream has one thread that enqueues on it. If kDownload and
// kDownloadGradients share a stream, as on `cpu` and on emulated devices, that stream accepts two
// threads: the stage runner and the gradient downloader. A stream executes what one thread enqueues
// in that thread's order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "device/output_signals.h"
#include "hoststore/memory_use.h"
#include "hoststore/sequence_word.h"
#include "roundpipe/error.h"

// The type behind the CUDA driver's CUstream.
struct CUstream_st;

namespace rp {

// A piece of a device's memory. Move-only; the device that made it must outlive it.
class DeviceMemory {
 public:
  using Release = std::function<void(std::byte*, std::uint64_t)>;
  DeviceMemory() = default;
  DeviceMemory(std::byte* data, std::uint64_t bytes, Release release)
      : data_(data), bytes_(bytes), release_(std::move(release)) {}
  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    DeviceMemory taken(std::move(other));
    swap(taken);
    return *this;
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() {
    if (data_ != nullptr) release_(data_, bytes_);
  }

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  void swap(DeviceMemory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(release_, other.release_);
  }
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  Release release_;
};

// Marks a place in a stream's order that other streams of the device can wait for. Waiting for an
// event that was never recorded has no effect. If a device's streams cannot wait for each other,
// its events are empty. The users of events therefore also wait for a word
// (Stream::publish_waitable()), which such a device publishes only after all work before the event
// is done.
class Event {
 public:
  virtual ~Event() = default;
};

// A queue of operations that are executed in order.
class Stream {
 public:
  virtual ~Stream() = default;

  // Enqueues a copy between the host store and device memory.
  virtual void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) = 0;

  // Publishes `value` in `word` once everything enqueued before is done.
  virtual void signal(SequenceWord& word, std::uint64_t value) = 0;

  // Marks the place after everything that is enqueued so far. An event may be recorded again once
  // no stream needs its old place.
  virtual void record(Event& event) { (void)event; }

  // Makes everything that is enqueued from now on wait for `event` as it was recorded last, by
  // another stream of this device.
  virtual void wait_event(const Event& event) { (void)event; }

  // Publishes `value` in `word` as soon as it is safe for another stream to wait for an event that
  // this stream recorded before: the other stream then runs after everything enqueued here before.
  // That is immediately if the device itself keeps this order, and otherwise when the work is
  // done.
  virtual void publish_waitable(SequenceWord& word, std::uint64_t value) { signal(word, value); }

  // Calls `function(argument)` in a thread of the stream once everything enqueued before is done.
  virtual void call(void (*function)(void*), void* argument) = 0;

  // The same as call(), but operations that are enqueued later wait for the function to return.
  virtual void call_in_order(void (*function)(void*), void* argument) { call(function, argument); }

  // Returns the CUDA driver's stream, for libraries that enqueue on it, or nullptr if there is none.
  [[nodiscard]] virtual CUstream_st* driver_stream() const { return nullptr; }

  // Blocks until everything enqueued is done.
  virtual void drain() = 0;

  // The same as drain(), for a worker that gives up. Returns false if the work is not done within
  // `timeout_ns`, as when it waits for a worker that has ended.
  [[nodiscard]] virtual bool drain_within(std::int64_t timeout_ns) {
    (void)timeout_ns;
    drain();
    return true;
  }
};

// The streams of a worker. Two kinds may share a stream. The StageExecutor computes on kCompute. If
// the processor computes, this happens in the thread that calls the executor.
enum class StreamKind { kUploadParameters, kUploadActivations, kDownload, kDownloadGradients, kCompute };
inline constexpr std::size_t kNumStreamKinds = 5;

class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual std::string name() const = 0;

  // Allocates memory that is aligned to at least 4096 bytes; its contents are undefined. Throws
  // rp::Error (kNoResource).
  [[nodiscard]] virtual DeviceMemory allocate(std::uint64_t bytes, MemoryUse use) = 0;

  // Returns whether allocate() returns zeros.
  [[nodiscard]] virtual bool allocates_zeros() const { return false; }

  // A hint that allocate(bytes, use) will soon be called by a thread that must not lose time. Does
  // as much of the work as possible in advance, in the caller's thread. Thread-safe.
  virtual void prepare(std::uint64_t /*bytes*/, MemoryUse /*use*/) {}

  // Returns how much memory has been in use, if the device has memory of its own and counts it.
  [[nodiscard]] virtual DeviceMemoryPeaks memory_peaks() const { return {}; }

  // Returns the only stream of this kind. It belongs to the device.
  [[nodiscard]] virtual Stream& stream(StreamKind kind) = 0;

  // Returns the stream on which NCCL exchanges gradients with the GPUs of other nodes. nullptr: the
  // device does not, or was not made to.
  [[nodiscard]] virtual Stream* exchange_stream() { return nullptr; }
  // Called by a thread before it calls a library that uses the device and is not the worker's own.
  virtual void bind_thread() const {}

  // Returns an event that is not recorded yet.
  [[nodiscard]] virtual std::unique_ptr<Event> make_event() { return std::make_unique<Event>(); }

  // Called when the worker stops. From now on no call waits for operations in progress, and
  // operations that are enqueued for the host may be dropped. Thread-safe.
  virtual void stop() {}
  // Undoes stop(). REQUIRES: all streams are drained, and no thread uses the device.
  virtual void resume() {}

  // Called when the worker has failed and returns its resources. From now on no thread waits for
  // the device, and operations that are enqueued for the host may never be called.
  virtual void abandon() {}

  // Called before this process ends. The driver then frees everything at once, which is much faster
  // than freeing it piece by piece, so from now on nothing is returned to the driver. Must be
  // called by the thread that destroys the device. REQUIRES: its streams are drained, or it was
  // given up (abandon()).
  virtual void leave_to_process_end() {}

  // Throws rp::Error with the device's own message if the device has failed. A failed device does
  // not execute what is enqueued on it, and signals no thread. Thread-safe.
  virtual void check() {}
  // Throws that error only if the device has failed for good (kGpuFailed): any other error, such as an exception in a
  // layer, may then be only its first sign.
  void check_works() {
    try {
      check();
    } catch (const Error& error) {
      if (error.code() == ExitCode::kGpuFailed) throw;
    }
  }

  // Returns the object through which worker `number` of this store announces its outputs and waits
  // for those of others. Store and device must outlive it.
  [[nodiscard]] virtual std::unique_ptr<OutputSignals> connect(Store& store, int number);
};

}  // namespace rp
