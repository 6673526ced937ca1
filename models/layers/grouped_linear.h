// models/layers/grouped_linear.h
// Products of rows with the weights of their experts, for mixtures of experts.
//
// On a GPU one kernel makes the products of all experts; it takes the numbers of rows from the GPU's memory, so nothing
// waits for them: LibTorch's (at::_grouped_mm) where it has one, which is for bf16 on compute capability 9.0 and 10.0
// and rows of a multiple of 8 elements, else ours (kernels/cuda/grouped_product.cu). On the CPU: one product per
// expert, those of fp16 in fp32 (linear.h).
#pragma once

#include <ATen/core/Tensor.h>

namespace rp::models {

// y[i] = x[i] weight[expert of i]^T: [n, o], of the dtype of x, differentiable. Rows of x are sorted by expert;
// counts_e, int64 where x is, has the number of rows of each, together n, some of them 0. Deterministic.
//
// The gradient of the weight is that of whole experts, zero for those without rows. It is added to the leaf's fp32
// gradient in place (linear.h): on a GPU by our product itself; after LibTorch's, whose result has the weight's dtype,
// by one operator; on the CPU expert by expert, and experts without rows are not touched. Else it is autograd's, in the
// weight's dtype (fp16 on the CPU: fp32). Where looking at the numbers costs nothing, on the CPU, wrong ones throw; on
// a GPU the rows behind the last expert's are undefined.
[[nodiscard]] at::Tensor grouped_linear(const at::Tensor& x_nh, const at::Tensor& weight_eoh,
                                        const at::Tensor& counts_e);

}  // namespace rp::models
