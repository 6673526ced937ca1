// worker/input_buffers.h
// Device memory for the inputs of two microbatches: one is computed while the next one is uploaded.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "common/run_depth.h"
#include "common/system/clock.h"
#include "device/device.h"
#include "device/stream_signal.h"
#include "hoststore/boundary.h"
#include "worker/executor/stage_executor.h"
#include "worker/running_task.h"

namespace rp {

// Written by the input uploader, read by the stage runner. Microbatches are numbered over all tasks of the worker, from
// 0; number n lies in place n mod kInputPlaces.
class InputBuffers {
 public:
  explicit InputBuffers(Device& device)
      : device_(device), recomputable_(device, kPlaces), uploaded_(device, kPlaces), computed_(device, kPlaces) {}

  // InputUploader: until the place of microbatch n is free.
  [[nodiscard]] WaitResult wait_free(std::uint64_t n, const WaitLimits& limits) const {
    return n < kPlaces ? WaitResult::kReached : computed_.wait_at_least(n - kPlaces + 1, limits);
  }
  // InputUploader: makes it empty, for uploads on `stream`. REQUIRES: wait_free(n).
  void clear(std::uint64_t n, Stream& stream) {
    places_[n % kPlaces].inputs.blocks.clear();
    places_[n % kPlaces].inputs.gradient.reset();
    if (n >= kPlaces) computed_.enqueue_wait(n - kPlaces + 1, stream);
  }
  // InputUploader: copies a block of the store into the place of microbatch n and adds it to its inputs. Returns where
  // the end of the block, from its first tensor's data on, will be.
  std::span<const std::byte> upload(std::uint64_t n, BlockKind kind, int index, const std::byte* block,
                                    std::uint64_t bytes, Stream& stream);
  // InputUploader: all of microbatch n but the gradient, or all of it, is there once `stream` has done what is
  // enqueued. The first is said of backward stages only.
  void publish_recomputable(std::uint64_t n, Stream& stream) {
    places_[n % kPlaces].inputs.others_known_ns = now_ns();
    recomputable_.publish(n + 1, stream);
  }
  void publish_uploaded(std::uint64_t n, Stream& stream) {
    places_[n % kPlaces].inputs.known_ns = now_ns();
    uploaded_.publish(n + 1, stream);
  }

  // Stage runner: until that is said of microbatch n.
  [[nodiscard]] WaitResult wait_recomputable(std::uint64_t n, const WaitLimits& limits) const {
    return recomputable_.wait_at_least(n + 1, limits);
  }
  [[nodiscard]] WaitResult wait_uploaded(std::uint64_t n, const WaitLimits& limits) const {
    return uploaded_.wait_at_least(n + 1, limits);
  }
  // Stage runner: what `stream` computes from now on comes after that. REQUIRES: it was said.
  void compute_after_recomputable(std::uint64_t n, Stream& stream) const { recomputable_.enqueue_wait(n + 1, stream); }
  void compute_after_uploaded(std::uint64_t n, Stream& stream) const { uploaded_.enqueue_wait(n + 1, stream); }
  // Stage runner. REQUIRES: wait_uploaded(n), or wait_recomputable(n) and the gradient is not read.
  [[nodiscard]] const MicrobatchInputs& inputs(std::uint64_t n) const { return places_[n % kPlaces].inputs; }
  // Stage runner: the place of microbatch n may be filled again once `stream` has computed what is enqueued.
  void publish_computed(std::uint64_t n, Stream& stream) { computed_.publish(n + 1, stream); }

  void wake() const {
    recomputable_.wake();
    uploaded_.wake();
    computed_.wake();
  }

 private:
  static constexpr std::uint64_t kPlaces = kInputPlaces;
  struct Place {
    std::vector<ScratchMemory> memory;  // by place in inputs.blocks, and of the gradient behind them
    MicrobatchInputs inputs;
  };

  Device& device_;
  std::array<Place, kPlaces> places_;
  StreamSignal recomputable_;  // the upload-activations stream's. Number of the last one but for its gradient, plus 1
  StreamSignal uploaded_;      // likewise. Number of microbatches that are there
  StreamSignal computed_;      // the compute stream's. Number of microbatches computed
};

}  // namespace rp
