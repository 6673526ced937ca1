// device/output_signals.h
// How a worker tells the others that its outputs are in the store, and learns that theirs are.
//
// Each worker numbers its events upwards (control.h, Command::first_event). An event is behind everything that its
// maker's download stream had enqueued before. Who needs an output waits on the host until it may enqueue on a stream
// of its own, and then has that stream come after the event. What the host waits for differs: that the outputs are
// there (HostSignals), or only that their copies are enqueued, where devices wait for each other
// (docs/design/signals.md).
//
// Made by Device::connect(), owned by the worker. signal() is the stage runner's, the others are the input uploader's.
#pragma once

#include <cstdint>

#include "hoststore/sequence_word.h"

namespace rp {

class Store;
class Stream;

class OutputSignals {
 public:
  virtual ~OutputSignals() = default;

  // Event `event` of this worker, with its epoch, is behind what is enqueued on `stream`.
  virtual void signal(std::uint64_t event, Stream& stream) = 0;

  // Until enqueue_wait() may be called for an event of `worker`, which may be this one.
  [[nodiscard]] virtual WaitResult wait(int worker, std::uint64_t event, const WaitLimits& limits) = 0;

  // What is enqueued on `stream` from now on comes after the event. REQUIRES: wait() said kReached.
  virtual void enqueue_wait(int worker, std::uint64_t event, Stream& stream) = 0;
};

// By the worker's `events` word, a futex: for devices whose streams only the host can order.
class HostSignals : public OutputSignals {
 public:
  // The store must outlive it.
  HostSignals(Store& store, int worker) : store_(store), worker_(worker) {}
  void signal(std::uint64_t event, Stream& stream) override;
  [[nodiscard]] WaitResult wait(int worker, std::uint64_t event, const WaitLimits& limits) override;
  void enqueue_wait(int worker, std::uint64_t event, Stream& stream) override;

 private:
  Store& store_;
  const int worker_;
};

}  // namespace rp
