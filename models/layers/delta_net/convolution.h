// models/layers/delta_net/convolution.h
// Mixes each channel of a sequence over its last few tokens, as linear attention does before its
// queries, keys and values are split.
#pragma once

#include <ATen/core/Tensor.h>

namespace rp::models {

// Returns silu(sum over j of weight[c, j] y[t - (taps - 1) + j, c]) for b sequences of t tokens and
// c channels, with 1 to 16 taps: [b, t, c]. Terms before the start of the token's document are left
// out (documents_bk: documents.h; undefined: each sequence is one document). There is no bias. The
// sum is fp32 and is rounded to y's dtype, and so is silu of it, as in transformers.
//
// The weight may also be [c, 1, taps], as files have it: a view of a parameter would round the
// gradient. y is bf16, fp16 or fp32; the gradient of the weight is fp32. Differentiable in y and the weight;
// the backward pass computes the sums again. Results depend neither on the number of threads nor on
// the other sequences. Throws c10::Error, naming the operator, for tensors on several devices or wrong
// shapes.
[[nodiscard]] at::Tensor causal_convolution(const at::Tensor& y_btc, const at::Tensor& weight_cj,
                                            const at::Tensor& documents_bk = {});

}  // namespace rp::models
