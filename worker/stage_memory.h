// worker/stage_memory.h
// Where the weight groups of a stage lie in a task's device buffers: each group on whole pages, a tied group that is
// used twice once, accumulators and gradients of those only that are trained.
#pragma once

#include "device/device.h"
#include "hoststore/catalogue.h"
#include "worker/running_task.h"

namespace rp {

// Fills the task's uses, with their weights. REQUIRES: it has a stage buffer.
void place_weights(RunningTask& task, const Catalogue& catalogue, Device& device);

// What the gradients of a task take: of its uses that are trained, each once.
struct GradientBytes {
  std::uint64_t rounded = 0;
  std::uint64_t accumulators = 0;
};
[[nodiscard]] GradientBytes gradient_bytes(const Command& command, const Catalogue& catalogue);

// Of the uses that are trained: the rounded gradients, and the fp32 accumulators, which no other task needs until this
// one has rounded them. Returns whether the accumulators are zeros already. REQUIRES: the task makes gradients and has
// a gradient buffer.
bool place_gradients(RunningTask& task, ScratchMemory& accumulators, const Catalogue& catalogue, Device& device);

}  // namespace rp
