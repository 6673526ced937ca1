// cuda/event_signals.h
// Implements signals by CUDA IPC events. Each worker creates a ring of events once, and each peer
// opens them once (docs/design/signals.md).
//
// An event has no generation number, and an event that was never recorded counts as complete.
// Therefore a worker publishes `issued` only after it has recorded the event, and consumers wait
// for that on the host. The worker records an event again only when its old number is proven
// complete (`events`, which a host function after the copies publishes) and no consumer is about to
// wait for it (`held`). A consumer that finds the number complete already does not wait.
//
// All GPUs of the run must be visible to each worker. Words and handles:
// docs/formats/control.md#event-ring.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cuda/cuda_stream.h"
#include "device/output_signals.h"
#include "hoststore/store.h"

namespace rp {

class EventSignals : public OutputSignals {
 public:
  // Creates this worker's events. All arguments must outlive it. Throws rp::Error if the driver
  // cannot create events for other processes.
  EventSignals(const CudaContext& context, Store& store, int worker);

  void signal(EventInEpoch event, Stream& stream) override;
  [[nodiscard]] WaitResult wait(int worker, EventInEpoch event, const WaitLimits& limits) override;
  void enqueue_wait(int worker, EventInEpoch event, Stream& stream) override;

 private:
  static constexpr std::uint64_t kNum = EventRing::kNumEvents;
  static constexpr std::int64_t kTimeoutNs = 600 * kNsPerSecond;

  // Sleeps until event `old` of this worker is complete and no consumer is about to wait for
  // it.
  void wait_reusable(EventInEpoch old) const;
  [[nodiscard]] static std::uint64_t place_of(EventInEpoch event) { return event.number().value() % kNum; }
  [[nodiscard]] const std::vector<CudaEventHandle>& events_of(int worker);

  const CudaContext& context_;
  Store& store_;
  const int worker_;
  std::vector<std::vector<CudaEventHandle>> events_;  // by worker; those of others are opened when first needed
  std::vector<std::uint64_t> opened_;                 // by worker: `num_made` of the process whose events are open
  // What each CUDA event of this worker was recorded for last; 0: nothing. Used by the
  // stage runner only.
  std::array<EventInEpoch, kNum> recorded_{};
};

}  // namespace rp
