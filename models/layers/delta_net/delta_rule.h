// models/layers/delta_net/delta_rule.h
// Computes linear attention with the gated delta rule (Yang et al., "Gated Delta Networks", 2024),
// in chunks of 64 tokens: time and memory are linear in the length.
//
// For each value head a state S [d, e], zero at the start of each document, is changed by each
// token:
//   S = exp(decay) S;  u = beta (v - S^T k);  S = S + k u^T;  o = S^T q
// where q and k are divided by sqrt(sum of squares + 1e-6), and q also by sqrt(d).
#pragma once

#include <ATen/core/Tensor.h>

namespace rp::models {

// Shapes: b sequences, t tokens, k key heads, d their width, h value heads, e their width. Value
// head i uses key head i / (h / k).
struct DeltaRuleInputs {
  // In the activations' dtype: bf16, fp16 or fp32. The heads of a token must follow each other, but
  // tokens may have any stride, so parts of a wider tensor are not copied (split_with_sizes() joins
  // their gradients in one pass, whereas narrow() adds them up).
  at::Tensor q_btkd, k_btkd, v_bthe;
  at::Tensor decay_bth;  // fp32, not positive
  at::Tensor beta_bth;   // in the activations' dtype
  // The lengths of documents (documents.h). Undefined: each sequence is one document. A document
  // has the same bits as alone, wherever it begins, and others cost nothing.
  at::Tensor documents_bk{};
};

// Returns o in the activations' dtype: [b, t, h, e]. Everything between is fp32. Differentiable in
// q, k, v, decay and beta. Results depend neither on the number of threads nor on the other
// sequences.
//
// If a gradient is required, the states at the starts of chunks are kept for the backward pass: 4 d
// e bytes for each value head and 64 tokens of a document after the first 64 (d = e = 128, h = 32:
// 2 MiB per 64 tokens, 256 MiB for 8192). Otherwise the backward pass would compute all states
// again before it begins, which is two thirds of a forward pass; a stage keeps the states of one
// layer at a time if it recomputes by layer.
//
// Throws c10::Error, naming the operator, for tensors on several devices or wrong shapes and dtypes.
[[nodiscard]] at::Tensor gated_delta_rule(const DeltaRuleInputs& inputs);

}  // namespace rp::models
