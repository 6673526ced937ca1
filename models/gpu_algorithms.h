// models/gpu_algorithms.h
// Selects those algorithms of LibTorch for GPUs whose sums have a fixed order. Used by workers
// (plugin/), and by tests of the results of LibTorch's kernels on a GPU.
#pragma once

#include <ATen/Context.h>

namespace rp::models {

// Applies to the whole process. Must be called before anything is computed.
inline void choose_gpu_algorithms(bool allows_nondeterminism) {
  at::Context& context = at::globalContext();
  // An operation that has no algorithm with a fixed order prints a warning and continues, because
  // it belongs to a layer of the user.
  context.setDeterministicAlgorithms(!allows_nondeterminism, /*warn_only=*/true);
  // Filling would cost a pass over memory for each tensor.
  context.setDeterministicFillUninitializedMemory(false);
  // LibTorch prefers cuDNN's attention on an H100 and later. It avoids it for the sake of a fixed
  // order only if "warn only" is off. It checks this in the forward pass; the backward pass is then
  // cuDNN's as well, in no fixed order.
  context.setSDPUseCuDNN(allows_nondeterminism);
}

}  // namespace rp::models
