// models/layers/attention/attention.h
// Computes causal attention with grouped queries, windows and sinks: on the CPU in tiles that stay
// in the cache, on a GPU with LibTorch's kernels (gpu_attention.h).
//
// On the CPU, LibTorch's own kernel multiplies at the speed of fp32, whatever the dtype, on
// processors for which its BLAS has no bf16 code (docs/design/models.md). This one uses oneDNN's
// small products (at::native::cpublas::brgemm), which multiply bf16 by bf16 into fp32 if the
// processor can. So scores, softmax and all sums are fp32 and are rounded once. fp16 is computed as
// fp32 (linear.h).
//
// Shapes: b sequences, t positions, n query heads, m key/value heads (query head i belongs to
// key/value head i / (n / m)), d size of a head of queries and keys, e size of a head of values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace rp::models {

// The keys [b, t, m, d] of one layer, after their rotation, and its values [b, t, m, e].
struct KeysAndValues {
  at::Tensor keys, values;
};

// Defines which positions each position sees, and how scores become probabilities.
struct AttentionRule {
  std::optional<double> scale{};  // factor of the scores; none: 1 / sqrt(d)
  std::int64_t window = 0;  // number of positions that a position sees, including itself; 0: itself and all before it
  // One score for each query head. It takes its share of the probability but has no value.
  // Undefined: there are none.
  at::Tensor sinks_n{};
  // The lengths of documents (documents.h): a position sees only its own document, and windows
  // begin there. On the CPU each document is computed as if it were alone: it has the same bits,
  // and other documents cost nothing.
  at::Tensor documents_bk{};
};

// Returns softmax(scale q k^T) v, where each position sees itself and those before it: [b, t, n,
// e]. Differentiable; the gradient of the sinks is fp32. The result depends neither on the number
// of threads nor on addresses (on a GPU: in LibTorch's deterministic mode).
[[nodiscard]] at::Tensor causal_attention(const at::Tensor& q_btnd, const at::Tensor& k_btmd, const at::Tensor& v_btme,
                                          const AttentionRule& rule = {});

// Returns the rule's scale, or the default for heads of this size.
[[nodiscard]] double scale_of(const AttentionRule& rule, std::int64_t head_size);

}  // namespace rp::models
