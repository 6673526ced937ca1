// cuda/word_signals.h
// Signals by stream memory operations: the GPU itself writes the worker's `events` word, and others' GPUs wait for it
// (docs/design/signals.md). What it has written holds whatever becomes of the worker.
//
// The words lie in the control segment, which each process has registered. Needs no sight of other GPUs.
#pragma once

#include <cstdint>

#include "cuda/cuda_stream.h"
#include "device/output_signals.h"
#include "hoststore/store.h"

namespace rp {

class WordSignals : public OutputSignals {
 public:
  // All must outlive it. REQUIRES: the control segment is registered; the streams given are CudaStreams.
  // Throws rp::Error (kNoResource) if the GPU has no 64-bit stream memory operations.
  WordSignals(const CudaContext& context, const PinnedMemory& pinned, Store& store, int worker);

  void signal(std::uint64_t event, Stream& stream) override;
  [[nodiscard]] WaitResult wait(int worker, std::uint64_t event, const WaitLimits& limits) override;
  void enqueue_wait(int worker, std::uint64_t event, Stream& stream) override;

 private:
  [[nodiscard]] CUdeviceptr events_address(int worker) const;

  const CudaContext& context_;
  const PinnedMemory& pinned_;
  Store& store_;
  const int worker_;
};

}  // namespace rp
