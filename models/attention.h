// models/attention.h
// Causal attention with grouped queries, on the CPU in blocks that stay in the cache, on a GPU by LibTorch.
//
// On the CPU LibTorch's own kernel multiplies at the speed of fp32 whatever the dtype on processors for which its BLAS has no bf16
// code (docs/design/models.md). This one uses oneDNN's small products (at::native::cpublas::brgemm): bf16 times bf16
// into fp32 where the processor can, so scores, softmax and all sums are fp32, rounded once. fp16 is computed as fp32
// (linear.h).
//
// On a GPU: at::scaled_dot_product_attention, which takes its flash kernel for bf16 and fp16, and for fp32, which that does
// not know, its memory-efficient one. Their backward has a fixed order of sums only in LibTorch's deterministic mode without
// "warn only". So where the process has set that mode (at::globalContext().setDeterministicAlgorithms(true, warn_only), before
// the first layer runs), the backward here runs without "warn only" whatever was said; a second one is refused.
//
// Shapes: b sequences, t positions, n query heads, m key/value heads (head i of n belongs to i / (n / m)), d size.
#pragma once

#include <ATen/core/Tensor.h>

namespace rp::models {

// softmax(q k^T / sqrt(d), each position seeing itself and those before) v: [b, t, n, d]. Differentiable. Depends
// neither on the number of threads nor on addresses (on a GPU under the condition above).
[[nodiscard]] at::Tensor causal_attention(const at::Tensor& q_btnd, const at::Tensor& k_btmd,
                                          const at::Tensor& v_btmd);

}  // namespace rp::models
