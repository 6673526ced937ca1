// pipeline/torch_worker/cpu_tensor_memory.h
// Makes LibTorch allocate CPU tensors in a CPU worker's arena, which keeps its pages. LibTorch
// itself allocates each large tensor from the kernel and frees it again, so that every page of it
// is cleared and faulted in each time.
#pragma once

#include <memory>

#include "device/cpu_memory.h"

namespace rp {

// From the first call on, all large tensors of this process are allocated in the returned arena.
// Small ones still use malloc, which keeps its memory. The arena lives as long as the process,
// because tensors may outlive every device. Throws rp::Error (kNoResource).
[[nodiscard]] std::shared_ptr<CpuMemory> install_cpu_tensor_memory();

}  // namespace rp
