// cuda/event_signals.h
// Signals by CUDA IPC events: a ring of them per worker, made once, opened once by each peer (docs/design/signals.md).
//
// An event has no generation, and one that was never recorded counts as complete. So a worker publishes `issued` once
// it has recorded, a consumer waits for that on the host, and the worker records an event anew only when its old number
// is proven complete (`events`, by a host function behind the copies) and no consumer is about to wait for it (`held`).
// A consumer that finds the number complete waits for nothing.
//
// Needs all GPUs of the run to be visible to each worker. Words and handles: docs/formats/control.md#event-ring.
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
  // Makes this worker's events. All must outlive it. Throws rp::Error if the driver makes none for other processes.
  EventSignals(const CudaContext& context, Store& store, int worker);

  void signal(std::uint64_t event, Stream& stream) override;
  [[nodiscard]] WaitResult wait(int worker, std::uint64_t event, const WaitLimits& limits) override;
  void enqueue_wait(int worker, std::uint64_t event, Stream& stream) override;

 private:
  static constexpr std::uint64_t kNum = EventRing::kNumEvents;
  static constexpr std::int64_t kTimeoutNs = 600 * kNsPerSecond;

  // Sleeps until event number `old` of this worker is complete and nobody is about to wait for it.
  void wait_reusable(std::uint64_t old) const;
  [[nodiscard]] const std::vector<CudaEventHandle>& events_of(int worker);

  const CudaContext& context_;
  Store& store_;
  const int worker_;
  std::vector<std::vector<CudaEventHandle>> events_;  // by worker; others' are opened when they are first needed
  std::array<std::uint64_t, kNum>
      recorded_{};  // the stage runner's: which number each event of its own stands for; 0: none
};

}  // namespace rp
