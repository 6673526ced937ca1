// worker/running_task.h
// A task on a worker, from its command to its completion, and the device buffers that it holds meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"
#include "hoststore/control.h"
#include "worker/executor/stage_executor.h"

namespace rp {

// Device memory that grows to what is needed and is kept.
class ScratchMemory {
 public:
  // At least `bytes` bytes; the contents are lost if it had to grow.
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

// What a stage computes with. Held from the upload of the weights until the last microbatch is enqueued.
struct StageBuffer {
  ScratchMemory weights;              // working copies of the stage's weight groups
  std::unique_ptr<Event> computed{};  // of the compute stream: behind the last task that used it
};

// The rounded gradients of a stage. Held from before the first microbatch to the end of their download.
struct GradientBuffer {
  ScratchMemory gradients;
  std::unique_ptr<Event> computed{};  // of the compute stream: the gradients are there
};

class GradientDownloader;

// Filled by the weight uploader, computed by the stage runner, given back by the gradient downloader; each hands it to
// the next.
struct RunningTask {
  Command command;
  std::uint64_t serial = 0;     // of the tasks of this worker, from 1
  std::vector<UseMemory> uses;  // by (layer, use)
  double loss_scale = 1;
  std::int64_t weights_known_ns = 0;  // see StageTask
  std::int64_t weights_enqueued_ns = 0;
  StageBuffer* stage_buffer = nullptr;
  GradientBuffer* gradient_buffer = nullptr;
  TaskTotals totals;
  Completion completion;
  std::unique_ptr<Event> written{};  // of the download stream: behind the outputs of its last microbatch
  GradientDownloader* gradient_downloader = nullptr;  // for the last operation of its download

  [[nodiscard]] StageTask stage_task() const {
    return {.command = &command,
            .uses = uses,
            .loss_scale = loss_scale,
            .weights_known_ns = weights_known_ns,
            .weights_enqueued_ns = weights_enqueued_ns};
  }
};

}  // namespace rp
