// device/output_signals.h
// Announces to the other workers that outputs of this worker are in the store, and waits for the
// outputs of others.
//
// Each worker numbers its events upwards (control.h, Command::first_event). An event comes after
// everything that its maker's output download stream had enqueued before. A worker that needs an
// output first waits on the host until it may enqueue a wait, and then makes one of its own streams
// wait for the event. What the host waits for depends on the device: until the outputs are in the
// store (HostSignals), or only until their copies are enqueued, if devices can wait for each other
// (docs/design/signals.md).
//
// Made by Device::connect() and owned by the worker. The stage runner calls signal(), the input
// uploader the others.
#pragma once

#include <cstdint>

#include "hoststore/sequence_word.h"

namespace rp {

class Store;
class Stream;

class OutputSignals {
 public:
  virtual ~OutputSignals() = default;

  // Enqueues an event of this worker on `stream`.
  virtual void signal(EventInEpoch event, Stream& stream) = 0;

  // Blocks until enqueue_wait() may be called for an event of `worker`, which may be this worker. Returns kStopped also
  // if the event's epoch has ended.
  [[nodiscard]] virtual WaitResult wait(int worker, EventInEpoch event, const WaitLimits& limits) = 0;

  // Makes everything that is enqueued on `stream` from now on wait for the event. REQUIRES: wait()
  // returned kReached.
  virtual void enqueue_wait(int worker, EventInEpoch event, Stream& stream) = 0;
};

// Waits until `word`, which is `events` or `issued` of a worker, has reached an event. Returns kStopped if the word is
// in a later epoch: its worker is dead then, and the event may never have happened.
[[nodiscard]] WaitResult wait_for_event(const NumberWord<EventInEpoch>& word, EventInEpoch event,
                                        const WaitLimits& limits);

// Signals through the worker's `events` word, which is a futex. Used for devices whose streams only
// the host can order.
class HostSignals : public OutputSignals {
 public:
  // The store must outlive it.
  HostSignals(Store& store, int worker) : store_(store), worker_(worker) {}
  void signal(EventInEpoch event, Stream& stream) override;
  [[nodiscard]] WaitResult wait(int worker, EventInEpoch event, const WaitLimits& limits) override;
  void enqueue_wait(int worker, EventInEpoch event, Stream& stream) override;

 private:
  Store& store_;
  const int worker_;
};

}  // namespace rp
