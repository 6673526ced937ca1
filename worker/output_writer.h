// worker/output_writer.h
// Writes a task's outputs into the worker's activation arena and tells the readers where they are.
//
// Used by the runner only. What is free again comes through the coordinator's free ring.
#pragma once

#include <cstdint>
#include <memory>

#include "device/device.h"
#include "hoststore/arena_allocator.h"
#include "hoststore/store.h"
#include "worker/stage_executor.h"
#include "worker/worker_trace.h"

namespace rp {

class OutputWriter {
 public:
  // What it copies is recorded in `trace`.
  OutputWriter(Store& store, int worker, Device& device, WorkerTrace& trace);

  // Enqueues the copies of one microbatch's blocks and, after them, its event. Throws rp::Error (kNoResource) if the
  // arena cannot grow.
  void write(const Command& command, int microbatch, MicrobatchOutputs outputs);

 private:
  void take_back_freed();
  void write_block(const Command& command, int microbatch, const OutputBlock& block);

  Store& store_;
  const int worker_;
  Stream& stream_;
  WorkerTrace& trace_;
  RingReader<FreeRecord> frees_;
  ArenaAllocator allocator_;
};

}  // namespace rp
