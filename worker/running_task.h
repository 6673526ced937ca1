// worker/running_task.h
// Holds a task of a worker from its command to its completion, together with the device buffers
// that it occupies.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"
#include "hoststore/control.h"
#include "worker/executor/stage_executor.h"

namespace rp {

// Device memory that grows to the largest size requested and is then kept.
class ScratchMemory {
 public:
  // Returns at least `bytes` bytes. The contents are lost if the memory has to grow.
  std::byte* resize(Device& device, std::uint64_t bytes, MemoryUse use) {
    if (memory_.bytes() < bytes) {
      memory_ = DeviceMemory();
      memory_ = device.allocate(bytes, use);
    }
    return memory_.data();
  }

  [[nodiscard]] std::uint64_t bytes() const { return memory_.bytes(); }

 private:
  DeviceMemory memory_;
};

// The weights of a stage on the device. A task holds the buffer from the upload of its weights
// until its last microbatch is enqueued.
struct StageBuffer {
  ScratchMemory weights;              // working copies of the stage's weight groups
  std::unique_ptr<Event> computed{};  // in the compute stream, after the last task that used the buffer
};

// The rounded gradients of a stage on the device. A task holds the buffer from before its first
// microbatch to the end of the gradients' download.
struct GradientBuffer {
  ScratchMemory gradients;
  std::unique_ptr<Event> computed{};  // in the compute stream: the gradients are complete
};

class GradientDownloader;

// A task of the worker. Each thread passes it to the next: the weight uploader fills it in, the
// stage runner computes it, and the gradient downloader returns it.
struct RunningTask {
  Command command;
  std::uint64_t serial = 0;     // counts the tasks of this worker, from 1
  std::vector<UseMemory> uses;  // by (layer, use)
  double loss_scale = 1;
  std::int64_t weights_known_ns = 0;  // defined in StageTask
  std::int64_t weights_enqueued_ns = 0;
  StageBuffer* stage_buffer = nullptr;
  GradientBuffer* gradient_buffer = nullptr;
  TaskTotals totals;
  Completion completion;
  std::unique_ptr<Event> written{};                   // in the output download stream, after all outputs of the task
  GradientDownloader* gradient_downloader = nullptr;  // set for complete(), the last operation of the task

  [[nodiscard]] StageTask stage_task() const {
    return {.command = &command,
            .uses = uses,
            .loss_scale = loss_scale,
            .weights_known_ns = weights_known_ns,
            .weights_enqueued_ns = weights_enqueued_ns};
  }
};

}  // namespace rp
