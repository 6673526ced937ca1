// worker/stage_memory.h
// Lays out the weight groups of a stage in a task's device buffers.
//
// Each group begins on a page. A tied group that the stage uses twice has its weights there once.
// Only trained groups have accumulators and gradients.
#pragma once

#include "device/device.h"
#include "hoststore/catalogue.h"
#include "worker/running_task.h"

namespace rp {

// Fills in the task's uses with the addresses of their weights. REQUIRES: the task has a stage
// buffer.
void place_weights(RunningTask& task, const Catalogue& catalogue, Device& device);

// The number of bytes that the gradients of a task occupy. Each trained use of the stage counts.
struct GradientBytes {
  std::uint64_t rounded = 0;
  std::uint64_t accumulators = 0;
};
[[nodiscard]] GradientBytes gradient_bytes(const Command& command, const Catalogue& catalogue);

// Fills in the addresses of the rounded gradients and of the fp32 accumulators of the uses that are
// trained. No other task needs the accumulators until this one has rounded them. Returns true if
// the accumulators are zeros already. REQUIRES: the task computes gradients and has a gradient
// buffer.
bool place_gradients(RunningTask& task, ScratchMemory& accumulators, const Catalogue& catalogue, Device& device);

}  // namespace rp
