// models/layers/grouped_linear.h
// Computes products of rows with the weights of their experts, for mixtures of experts.
//
// On a GPU one kernel computes the products of all experts. It reads the numbers of rows from the
// GPU's memory, so nothing waits for them. It is LibTorch's kernel (at::_grouped_mm) if there is
// one: for bf16 on compute capability 9.0 and 10.0, and rows of a multiple of 8 elements. Otherwise
// it is our own (kernels/cuda/grouped_product.cu). On the CPU there is one product per expert, in
// fp32 for fp16 (linear.h).
#pragma once

#include <ATen/core/Tensor.h>

namespace rp::models {

// Returns y[i] = x[i] weight[expert of i]^T: [n, o], in the dtype of x. Differentiable and
// deterministic. The rows of x are sorted by expert. counts_e, int64 on the device of x, contains
// the number of rows of each expert; their sum is n, and some may be 0.
//
// The gradient of the weight covers all experts; it is zero for experts without rows. If possible,
// it is added in place to the leaf's fp32 gradient (linear.h): on a GPU by our product itself, or
// after LibTorch's product, whose result has the weight's dtype, by one operator; on the CPU expert
// by expert, without touching experts that have no rows. Otherwise it is passed to autograd in the
// weight's dtype (fp16 on the CPU: in fp32). On the CPU, where checking the counts costs nothing,
// wrong ones throw. On a GPU the rows after those of the last expert are then undefined.
[[nodiscard]] at::Tensor grouped_linear(const at::Tensor& x_nh, const at::Tensor& weight_eoh,
                                        const at::Tensor& counts_e);

}  // namespace rp::models
