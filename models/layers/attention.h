// models/layers/attention.h
// Causal attention with grouped queries, windows and sinks, on the CPU in tiles that stay in the cache, on a GPU by
// LibTorch.
//
// On the CPU LibTorch's own kernel multiplies at the speed of fp32 whatever the dtype on processors for which its BLAS
// has no bf16 code (docs/design/models.md). This one uses oneDNN's small products (at::native::cpublas::brgemm): bf16
// times bf16 into fp32 where the processor can, so scores, softmax and all sums are fp32, rounded once. fp16 is
// computed as fp32 (linear.h).
//
// On a GPU: gpu_attention.h.
//
// Shapes: b sequences, t positions, n query heads, m key/value heads (head i of n belongs to i / (n / m)), d size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace rp::models {

// What a position sees, and how scores become probabilities.
struct AttentionRule {
  std::optional<double> scale{};  // of the scores; none: 1 / sqrt(d)
  std::int64_t window = 0;        // positions that one sees, itself included; 0: all before it
  // A score of each query head, which takes its share of the probability and has no value. Undefined: there is none.
  at::Tensor sinks_n{};
  // documents.h: a position sees only its own document, and windows begin there. On the CPU each document is computed
  // as if it were alone: it has the same bits, and what is in other documents costs nothing.
  at::Tensor documents_bk{};
};

// softmax(scale q k^T, each position seeing itself and those before) v: [b, t, n, d]. Differentiable; the gradient of
// the sinks is fp32. Depends neither on the number of threads nor on addresses (on a GPU: in LibTorch's deterministic
// mode).
[[nodiscard]] at::Tensor causal_attention(const at::Tensor& q_btnd, const at::Tensor& k_btmd, const at::Tensor& v_btmd,
                                          const AttentionRule& rule = {});

// The rule's scale, or its default for heads of this size.
[[nodiscard]] double scale_of(const AttentionRule& rule, std::int64_t head_size);

}  // namespace rp::models
