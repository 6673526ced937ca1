// worker/input_buffers.h
// Holds the inputs of two microbatches in device memory: one is computed while the next one is
// uploaded.
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

// Written by the input uploader and read by the stage runner. Microbatches are numbered over all
// tasks of the worker, from 0. Microbatch n uses place n mod kInputPlaces.
class InputBuffers {
 public:
  explicit InputBuffers(Device& device)
      : device_(device), recomputable_(device, kPlaces), uploaded_(device, kPlaces), computed_(device, kPlaces) {}

  // Called by the input uploader. Blocks until the place of microbatch n is free.
  [[nodiscard]] WaitResult wait_free(std::uint64_t n, const WaitLimits& limits) const {
    return computed_.wait_at_least(returned_before(n, kInputPlaces), limits);
  }
  // Called by the input uploader. Empties the place of microbatch n, and makes later uploads on
  // `stream` wait until the device no longer reads it. REQUIRES: wait_free(n) returned kReached.
  void clear(std::uint64_t n, Stream& stream) {
    places_[n % kPlaces].inputs.blocks.clear();
    places_[n % kPlaces].inputs.gradient.reset();
    if (n >= kPlaces) computed_.enqueue_wait(returned_before(n, kInputPlaces), stream);
  }
  // Called by the input uploader. Enqueues the copy of a block of the store to the place of
  // microbatch n, and adds the block to its inputs. Returns the device memory that will contain the
  // block from its first tensor's data to its end.
  std::span<const std::byte> upload(std::uint64_t n, BlockKind kind, int index, const std::byte* block,
                                    std::uint64_t bytes, Stream& stream);
  // Called by the input uploader. The first announces that all inputs of microbatch n except the
  // gradient are uploaded once `stream` has done what is enqueued; it is called for backward stages
  // only. The second announces the same of all inputs.
  void publish_recomputable(std::uint64_t n, Stream& stream) {
    places_[n % kPlaces].inputs.others_known_ns = now_ns();
    recomputable_.publish(n + 1, stream);
  }
  void publish_uploaded(std::uint64_t n, Stream& stream) {
    places_[n % kPlaces].inputs.known_ns = now_ns();
    uploaded_.publish(n + 1, stream);
  }

  // Called by the stage runner. Block until the announcement was made for microbatch n.
  [[nodiscard]] WaitResult wait_recomputable(std::uint64_t n, const WaitLimits& limits) const {
    return recomputable_.wait_at_least(n + 1, limits);
  }
  [[nodiscard]] WaitResult wait_uploaded(std::uint64_t n, const WaitLimits& limits) const {
    return uploaded_.wait_at_least(n + 1, limits);
  }
  // Called by the stage runner. Make what is enqueued on `stream` from now on run after the
  // announced uploads. REQUIRES: the corresponding wait returned kReached.
  void compute_after_recomputable(std::uint64_t n, Stream& stream) const { recomputable_.enqueue_wait(n + 1, stream); }
  void compute_after_uploaded(std::uint64_t n, Stream& stream) const { uploaded_.enqueue_wait(n + 1, stream); }
  // Called by the stage runner. REQUIRES: wait_uploaded(n) returned kReached; or
  // wait_recomputable(n) did, and the gradient is not read.
  [[nodiscard]] const MicrobatchInputs& inputs(std::uint64_t n) const { return places_[n % kPlaces].inputs; }
  // Called by the stage runner. Allows the place of microbatch n to be filled again once `stream`
  // has done what is enqueued.
  void publish_computed(std::uint64_t n, Stream& stream) { computed_.publish(n + 1, stream); }

  void wake() const {
    recomputable_.wake();
    uploaded_.wake();
    computed_.wake();
  }

 private:
  static constexpr std::uint64_t kPlaces = kInputPlaces;
  struct Place {
    std::vector<ScratchMemory> memory;  // by index in inputs.blocks; the gradient's comes after them
    MicrobatchInputs inputs;
  };

  Device& device_;
  std::array<Place, kPlaces> places_;
  StreamSignal
      recomputable_;       // on the activation upload stream: number of microbatches uploaded except for the gradient
  StreamSignal uploaded_;  // on the activation upload stream: number of microbatches uploaded
  StreamSignal computed_;  // on the compute stream: number of microbatches computed
};

}  // namespace rp
