// models/gpu_algorithms.h
// Chooses among LibTorch's algorithms on a GPU those with a fixed order of sums. For workers (plugin/), and for tests
// of what LibTorch's kernels give there.
#pragma once

#include <ATen/Context.h>

namespace rp::models {

// For the whole process, before anything is computed.
inline void choose_gpu_algorithms(bool allows_nondeterminism) {
  at::Context& context = at::globalContext();
  // What has no algorithm with a fixed order warns and goes on: it is the user's layer.
  context.setDeterministicAlgorithms(!allows_nondeterminism, /*warn_only=*/true);
  context.setDeterministicFillUninitializedMemory(false);  // a pass over memory for each tensor
  // LibTorch prefers cuDNN's attention on an H100 and later. It does without it for the sake of a fixed order only
  // where "warn only" is off, which it looks at in the forward; the backward then is cuDNN's as well, in no fixed
  // order.
  context.setSDPUseCuDNN(allows_nondeterminism);
}

}  // namespace rp::models
