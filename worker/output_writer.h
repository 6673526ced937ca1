// worker/output_writer.h
// Writes a task's outputs into the worker's activation arena and tells the readers where they are.
//
// Used by the stage runner only. What is free again comes through the coordinator's free ring.
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
#include "worker/observers/worker_trace.h"

namespace rp {

class OutputWriter {
 public:
  // What it copies is recorded in `trace`. All must outlive it, and the download stream be drained before it ends.
  OutputWriter(Store& store, int worker, Device& device, OutputSignals& signals, WorkerTrace& trace);

  // Until there is room on the device for the outputs of another microbatch: until those of all but kOutputPlaces - 1
  // are copied.
  [[nodiscard]] WaitResult wait_room(const WaitLimits& limits) const {
    return num_written_ < kOutputPlaces ? WaitResult::kReached
                                        : copied_.wait_at_least(num_written_ + 1 - kOutputPlaces, limits);
  }

  // Enqueues the copies of one microbatch's blocks, which the compute stream has been given to compute, and, after
  // them, its event. Throws rp::Error (kNoResource) if the arena cannot grow. REQUIRES: there is room.
  void write(const Command& command, int microbatch, MicrobatchOutputs outputs);

  // What is enqueued on the download stream from now on comes after `event`.
  void wait_event(const Event& event) { stream_.wait_event(event); }
  // `event` is behind all that was enqueued there.
  void record(Event& event) { stream_.record(event); }

  // Wakes who waits for room.
  void wake() const { copied_.wake(); }

 private:
  void take_back_freed();
  void write_block(const Command& command, int microbatch, const OutputBlock& block);
  static void free_place(void* place);

  Store& store_;
  const int worker_;
  Stream& stream_;
  Stream& compute_;
  OutputSignals& signals_;
  WorkerTrace& trace_;
  RingReader<FreeRecord> frees_;
  ArenaAllocator allocator_;
  const std::unique_ptr<Event> computed_;  // of the compute stream: behind the microbatch that is written
  // Of the last microbatches: what keeps their tensors alive until they are copied.
  struct Place {
    std::vector<OutputBlock> blocks;
    OutputWriter* writer = nullptr;
    std::uint64_t number = 0;  // of microbatches, with this one
  };
  std::array<Place, kOutputPlaces> places_;
  std::uint64_t num_written_ = 0;  // microbatches
  SequenceWord copied_{};          // writer: the download stream. Of those
};

}  // namespace rp
