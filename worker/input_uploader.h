// worker/input_uploader.h
// Uploads a task's inputs, one microbatch ahead of the stage runner.
//
// Owned by the EpochService. run() is executed by the input uploader's thread. It waits for the events of
// the workers that make the blocks, and for free places in the InputBuffers, which it fills. It
// writes no word of the store.
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

  // Uploads inputs until the worker stops.
  void run();

 private:
  // Both upload inputs of microbatch n, counted over all tasks. They return false if the worker
  // stops.
  [[nodiscard]] bool fetch(const Command& command, const std::vector<BlockRow>& rows, int microbatch, std::uint64_t n);
  [[nodiscard]] bool fetch_block(const Command& command, const BlockRow& wanted, int microbatch, std::uint64_t n);

  WorkerParts& worker_;
  Stream& stream_;
  InputBuffers& inputs_;
  ThreadWaits waits_;
};

}  // namespace rp
