// tests/reference/whole_batch.h
// Gradients by plain autograd: no microbatches, no pipeline, in any precision.
#pragma once

#include <vector>

#include "tests/reference/reference_loop.h"

namespace rp::reference {

struct WholeRound {
  Round round;
  int loss = 0;
};

// The gradients of the rounds' losses at the initial weights, summed, of the trained parameters in layer order, tied
// ones once. Everything is computed in `dtype`; the results are fp64. The weights are those of the model's dtype,
// exactly. REQUIRES: no buffers.
[[nodiscard]] std::vector<at::Tensor> whole_batch_gradients(const Model& model, const std::vector<Loss>& losses,
                                                            const std::vector<WholeRound>& rounds,
                                                            at::ScalarType dtype);

// ||a - b|| / ||b|| over all tensors; both fp64.
[[nodiscard]] double relative_error(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

}  // namespace rp::reference
