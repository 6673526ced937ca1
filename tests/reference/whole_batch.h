// tests/reference/whole_batch.h
// Computes gradients by plain autograd, without microbatches or a pipeline, in any precision.
#pragma once

#include <vector>

#include "tests/reference/reference_loop.h"

namespace rp::reference {

struct WholeRound {
  Round round;
  int loss = 0;
};

// Returns the gradients of the rounds' losses at the initial weights, summed, for the trained
// parameters in layer order; tied parameters appear once. Everything is computed in `dtype`; the
// results are fp64. The weights have exactly the values that they have in the model's dtype.
// REQUIRES: the model has no buffers.
[[nodiscard]] std::vector<at::Tensor> whole_batch_gradients(const Model& model, const std::vector<Loss>& losses,
                                                            const std::vector<WholeRound>& rounds,
                                                            at::ScalarType dtype);

// Returns ||a - b|| / ||b|| over all tensors. REQUIRES: both are fp64.
[[nodiscard]] double relative_error(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

}  // namespace rp::reference
