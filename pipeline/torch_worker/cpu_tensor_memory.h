// pipeline/torch_worker/cpu_tensor_memory.h
// Gives LibTorch's tensors on the processor memory of a CPU worker's arena, which keeps its pages: LibTorch itself
// takes each large tensor from the kernel and gives it back, and every page of it is cleared and faulted in again.
#pragma once

#include <memory>

#include "device/cpu_memory.h"

namespace rp {

// From the first call on, all large tensors of this process lie in the arena that it returns; small ones stay with
// malloc, which keeps them. The arena lives as long as the process: tensors may outlive every device. Throws rp::Error
// (kNoResource).
[[nodiscard]] std::shared_ptr<CpuMemory> install_cpu_tensor_memory();

}  // namespace rp
