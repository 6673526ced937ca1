// worker/output_writer.h
// Writes a task's outputs to the worker's activation arena, and announces to the readers where they
// are.
//
// Used by the stage runner only. When a block is no longer needed, the coordinator returns it
// through the worker's free ring.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/run_depth.h"
#include "device/device.h"
#include "hoststore/arena_allocator.h"
#include "hoststore/store.h"
#include "worker/executor/stage_executor.h"
#include "worker/observers/worker_observers.h"

namespace rp {

class OutputWriter {
 public:
  // All arguments must outlive it, and the output download stream must be drained before it is
  // destroyed.
  OutputWriter(Store& store, int worker, Device& device, OutputSignals& signals, WorkerObservers& observers);

  // Blocks until the device has free space for the outputs of another microbatch, which is when the
  // outputs of all microbatches except the last kOutputPlaces - 1 are copied.
  [[nodiscard]] WaitResult wait_room(const WaitLimits& limits) const {
    return copied_.wait_at_least(returned_before(num_written_, kOutputPlaces), limits);
  }

  // Enqueues the copies of one microbatch's blocks, whose computation is already enqueued on the
  // compute stream, and after them the microbatch's event. Throws rp::Error (kNoResource) if the
  // arena cannot grow. REQUIRES: wait_room() returned kReached.
  void write(const Command& command, int microbatch, MicrobatchOutputs outputs);

  // Makes the output download stream wait for `event` before it runs what is enqueued from now on.
  void wait_event(const Event& event) { stream_.wait_event(event); }
  // Records `event` after everything that is enqueued on the output download stream.
  void record(Event& event) { stream_.record(event); }

  // Wakes the thread that waits in wait_room().
  void wake() const { copied_.wake(); }

 private:
  void take_back_freed(Epoch epoch);
  void write_block(const Command& command, int microbatch, const OutputBlock& block);
  static void free_place(void* argument);

  Store& store_;
  const int worker_;
  Stream& stream_;
  Stream& compute_;
  OutputSignals& signals_;
  WorkerObservers& observers_;
  RingReader<FreeRecord> frees_;
  ArenaAllocator allocator_;
  const std::unique_ptr<Event> computed_;  // in the compute stream, after the microbatch that is being written
  // Keeps the tensors of one of the last microbatches alive until they are copied.
  struct Place {
    std::vector<OutputBlock> blocks;
    OutputWriter* writer = nullptr;
    std::uint64_t number = 0;  // of microbatches written, including this one
  };
  std::array<Place, kOutputPlaces> places_;
  std::uint64_t num_written_ = 0;  // microbatches
  SequenceWord copied_{};          // writer: the output download stream. Microbatches whose outputs are copied
};

}  // namespace rp
