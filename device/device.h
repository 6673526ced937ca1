// device/device.h
// A device as the protocol sees it: memory, streams, copies, signals. Bytes only; what runs on it is the
// StageExecutor's.
//
// Owned by the worker. Several threads may enqueue on a stream that runs elsewhere (the download stream); an upload
// stream belongs to one thread. What a thread enqueues happens in its order.
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

namespace rp {

// Memory of a device. Move-only; the device that made it must outlive it.
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

// Marks a place in a stream's order, for other streams of the device to wait for. An event that was never recorded
// marks nothing. Devices whose streams cannot wait for each other have empty events: their users also wait for a word
// (Stream::publish_waitable()), and by then all work before the event is done.
class Event {
 public:
  virtual ~Event() = default;
};

// An in-order queue of operations.
class Stream {
 public:
  virtual ~Stream() = default;

  // Copies between the host store and device memory.
  virtual void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) = 0;

  // Publishes `value` in `word` once everything enqueued before is done.
  virtual void signal(SequenceWord& word, std::uint64_t value) = 0;

  // Marks the place behind everything that is enqueued now. An event may be recorded again once no stream needs its old
  // place.
  virtual void record(Event& event) { (void)event; }

  // Makes what is enqueued from now on wait for `event` as it was recorded last, by another stream of this device.
  virtual void wait_event(const Event& event) { (void)event; }

  // Publishes `value` as soon as a stream that then waits for an event recorded before is sure to run after everything
  // enqueued before: at once where the device keeps that order by itself, else when that work is done.
  virtual void publish_waitable(SequenceWord& word, std::uint64_t value) { signal(word, value); }

  // Calls `function(argument)` once everything enqueued before is done, in a thread of the stream's.
  virtual void call(void (*function)(void*), void* argument) = 0;

  // Likewise, and what is enqueued afterwards comes after it: the stream stands still meanwhile.
  virtual void call_in_order(void (*function)(void*), void* argument) { call(function, argument); }

  // Returns when everything enqueued is done.
  virtual void drain() = 0;

  // Likewise, for a worker that gives up: false if it is not done within this time, for want of a worker that is gone.
  [[nodiscard]] virtual bool drain_within(std::int64_t timeout_ns) {
    (void)timeout_ns;
    drain();
    return true;
  }
};

// The streams of a worker. Two kinds may share one. kCompute is what the StageExecutor computes on: in the thread that
// calls it where nothing but the host computes.
enum class StreamKind { kUploadParameters, kUploadActivations, kDownload, kDownloadGradients, kCompute };

class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual std::string name() const = 0;

  // Memory aligned to at least 4096 bytes, contents undefined. Throws rp::Error (kNoResource).
  [[nodiscard]] virtual DeviceMemory allocate(std::uint64_t bytes, MemoryUse use) = 0;

  // Whether allocate() gives zeros.
  [[nodiscard]] virtual bool allocates_zeros() const { return false; }

  // A hint: allocate(bytes, use) is called soon, by a thread that must not lose time to it. Does what of it can be done
  // ahead, in the caller's time. Any thread.
  virtual void prepare(std::uint64_t /*bytes*/, MemoryUse /*use*/) {}

  // What has been taken so far, where the device has memory of its own and counts it.
  [[nodiscard]] virtual DeviceMemoryPeaks memory_peaks() const { return {}; }

  // The one stream of its kind, the device's.
  [[nodiscard]] virtual Stream& stream(StreamKind kind) = 0;

  // Not recorded yet.
  [[nodiscard]] virtual std::unique_ptr<Event> make_event() { return std::make_unique<Event>(); }

  // The worker stops: no call sleeps any longer for what is under way, and what is enqueued for the host from now on
  // may be dropped. Any thread.
  virtual void stop() {}

  // The worker has failed and gives back what it has: nothing waits for the device any more, and what is enqueued for
  // the host may never be called.
  virtual void abandon() {}

  // This process ends, and the driver takes everything back with it, much faster than piece by piece: from now on
  // nothing is given back to the driver. For the thread that ends the device. REQUIRES: its streams are drained, or it
  // was given up (abandon()).
  virtual void leave_to_process_end() {}

  // Throws rp::Error with what the device says where it has failed: what is enqueued on it is not done, and nobody
  // told. Any thread.
  virtual void check() {}

  // How worker `number` of this store tells others of its outputs, and learns of theirs. Store and device must outlive
  // it.
  [[nodiscard]] virtual std::unique_ptr<OutputSignals> connect(Store& store, int number);
};

}  // namespace rp
