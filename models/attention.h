// models/attention.h
// Causal attention with grouped queries, on the CPU in blocks that stay in the cache, on a GPU by LibTorch.
//
// On the CPU LibTorch's own kernel multiplies at the speed of fp32 whatever the dtype on processors for which its BLAS has no bf16
// code (docs/design/models.md). This one uses oneDNN's small products (at::native::cpublas::brgemm): bf16 times bf16
// into fp32 where the processor can, so scores, softmax and all sums are fp32, rounded once. fp16 is computed as fp32
// (linear.h).
//
// On a GPU: gpu_attention.h.
//
// Shapes: b sequences, t positions, n query heads, m key/value heads (head i of n belongs to i / (n / m)), d size.
#pragma once

#include <ATen/core/Tensor.h>

namespace rp::models {

// softmax(q k^T / sqrt(d), each position seeing itself and those before) v: [b, t, n, d]. Differentiable. Depends
// neither on the number of threads nor on addresses (on a GPU: in LibTorch's deterministic mode).
//
// With `documents_bk` (documents.h) a position sees only its own document. On the CPU each document is computed as if it were
// alone: it has the same bits, and what lies in other documents costs nothing.
[[nodiscard]] at::Tensor causal_attention(const at::Tensor& q_btnd, const at::Tensor& k_btmd, const at::Tensor& v_btmd,
                                          const at::Tensor& documents_bk = {});

}  // namespace rp::models
