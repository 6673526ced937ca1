// models/layers/attention/blocked_attention.h
// Computes attention on a GPU for heads that are too large for LibTorch's flash kernel, such as those of
// Gemma 4, by products of LibTorch: blocks of queries meet all keys that they can see. Scores, softmax
// and sums are fp32. The backward pass computes the scores again.
//
// LibTorch's memory-efficient kernel takes such heads, too. But it needs keys and values for each query
// head; in deterministic mode its backward pass has one block of threads for each head and sequence; and
// with documents it needs an fp32 copy of all queries for each place of a document, also of empty ones.
#pragma once

#include "models/layers/attention/attention.h"

namespace rp::models {

// Computes the same as causal_attention() (attention.h), on any device. Deterministic. Nothing waits for
// the device. REQUIRES: the rule has no sinks.
[[nodiscard]] at::Tensor blocked_attention(const at::Tensor& q_btnd, const at::Tensor& k_btmd, const at::Tensor& v_btme,
                                           const AttentionRule& rule);

}  // namespace rp::models
