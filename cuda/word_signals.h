// cuda/word_signals.h
// Implements signals by stream memory operations: the GPU itself writes the worker's `events` word,
// and the GPUs of other workers wait for it (docs/design/signals.md). A value that was written
// stays valid whatever happens to the worker.
//
// The words are in the control segment, which each process has registered. Other GPUs need not be
// visible to the worker.
#pragma once

#include <cstdint>

#include "cuda/cuda_stream.h"
#include "device/output_signals.h"
#include "hoststore/store.h"

namespace rp {

class WordSignals : public OutputSignals {
 public:
  // All arguments must outlive it. REQUIRES: the control segment is registered, and the streams
  // passed to its methods are CudaStreams. Throws rp::Error (kNoResource) if the GPU has no 64-bit
  // stream memory operations.
  WordSignals(const CudaContext& context, const PinnedMemory& pinned, Store& store, int worker);

  void signal(EventInEpoch event, Stream& stream) override;
  [[nodiscard]] WaitResult wait(int worker, EventInEpoch event, const WaitLimits& limits) override;
  void enqueue_wait(int worker, EventInEpoch event, Stream& stream) override;

 private:
  [[nodiscard]] CUdeviceptr events_address(int worker) const;

  const CudaContext& context_;
  const PinnedMemory& pinned_;
  Store& store_;
  const int worker_;
};

}  // namespace rp
