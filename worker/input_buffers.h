// worker/input_buffers.h
// Device memory for the inputs of two microbatches: one is computed while the next one is uploaded.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "common/clock.h"
#include "common/run_depth.h"
#include "device/device.h"
#include "hoststore/boundary.h"
#include "worker/running_task.h"
#include "worker/stage_executor.h"

namespace rp {

// Written by the fetcher, read by the runner. Microbatches are numbered over all tasks of the worker, from 0;
// number n lies in place n mod kInputPlaces.
class InputBuffers {
 public:
  explicit InputBuffers(Device& device) : device_(device) {}

  // Fetcher: until the place of microbatch n is free.
  [[nodiscard]] WaitResult wait_free(std::uint64_t n, const WaitLimits& limits) const {
    return n < kPlaces ? WaitResult::kReached : computed_.wait_at_least(n - kPlaces + 1, limits);
  }
  // Fetcher: copies a block of the store into the place of microbatch n and adds it to its inputs. Returns where the end of
  // the block, from its first tensor's data on, will be.
  std::span<const std::byte> upload(std::uint64_t n, BlockKind kind, int index, const std::byte* block, std::uint64_t bytes,
                                    Stream& stream);
  // Fetcher: all of microbatch n but the gradient, or all of it, is there once `stream` has done what is enqueued. The first is
  // said of backward stages only.
  void publish_recomputable(std::uint64_t n, Stream& stream) {
    places_[n % kPlaces].inputs.others_known_ns = now_ns();
    stream.signal_compute(recomputable_, n + 1);
  }
  void publish_uploaded(std::uint64_t n, Stream& stream) {
    places_[n % kPlaces].inputs.known_ns = now_ns();
    stream.signal_compute(uploaded_, n + 1);
  }

  // Runner: until that is said of microbatch n.
  [[nodiscard]] WaitResult wait_recomputable(std::uint64_t n, const WaitLimits& limits) const {
    return recomputable_.wait_at_least(n + 1, limits);
  }
  [[nodiscard]] WaitResult wait_uploaded(std::uint64_t n, const WaitLimits& limits) const {
    return uploaded_.wait_at_least(n + 1, limits);
  }
  // Runner. REQUIRES: wait_uploaded(n), or wait_recomputable(n) and the gradient is not read.
  [[nodiscard]] const MicrobatchInputs& inputs(std::uint64_t n) const { return places_[n % kPlaces].inputs; }
  // Runner: the place of microbatch n may be filled again.
  void publish_computed(std::uint64_t n) { computed_.publish(n + 1); }

  void clear(std::uint64_t n) {
    places_[n % kPlaces].inputs.blocks.clear();
    places_[n % kPlaces].inputs.gradient.reset();
  }
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
  SequenceWord recomputable_{};  // writer: the upload-activations stream. Number of the last one but for its gradient, plus 1
  SequenceWord uploaded_{};      // likewise. Number of microbatches that are there
  SequenceWord computed_{};      // writer: the runner. Number of microbatches computed
};

}  // namespace rp
