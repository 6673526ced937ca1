// worker/input_uploader.h
// The thread that uploads a task's inputs, one microbatch ahead of the stage runner.
//
// Owned by the Worker; run() is its thread. Waits for the events of the workers that make the blocks and for places in
// the InputBuffers, which it fills. Writes no word of the store.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/input_buffers.h"
#include "worker/worker_parts.h"

namespace rp {

class InputUploader {
 public:
  // `inputs` must outlive it.
  InputUploader(WorkerParts& worker, InputBuffers& inputs);

  // Until the worker stops.
  void run();

 private:
  // Both for microbatch n of all. A false result means: the worker stops.
  [[nodiscard]] bool fetch(const Command& command, const std::vector<BlockRow>& rows, int microbatch, std::uint64_t n);
  [[nodiscard]] bool fetch_block(const Command& command, BlockRow row, int microbatch, std::uint64_t n);

  WorkerParts& worker_;
  Stream& stream_;
  InputBuffers& inputs_;
  ThreadWaits waits_;
};

}  // namespace rp
