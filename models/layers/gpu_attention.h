// models/layers/gpu_attention.h
// Attention by LibTorch's own kernels: all of it on a GPU, and on the CPU what attention.cc has no tiles for.
//
// On a GPU: at::scaled_dot_product_attention, which takes its flash kernel for bf16 and fp16, and for fp32, which that
// does not know, its memory-efficient one. Their backward has a fixed order of sums only in LibTorch's deterministic
// mode without "warn only". So where the process has set that mode
// (at::globalContext().setDeterministicAlgorithms(true, warn_only), before the first layer runs), the backward here
// runs without "warn only" whatever was said; a second one is refused.
//
// Documents (documents.h), windows and sinks in bf16 and fp16 go through one call of the flash kernel itself, with
// documents of its variant for sequences of different lengths. It knows no sinks, but gives the logarithm of each sum
// of exponentials, with which its output and its gradients are those with a sink. Where that kernel does not fit (fp32,
// heads of an odd size, a card before compute capability 8.0), each document is a call of its own: for that the lengths
// must be known, so it waits for the GPU once. With a window or sinks whole scores are formed there.
#pragma once

#include "models/layers/attention.h"

namespace rp::models {

// As causal_attention() (attention.h), for tensors that run on a GPU.
[[nodiscard]] at::Tensor gpu_attention(const at::Tensor& q_btnd, const at::Tensor& k_btmd, const at::Tensor& v_btmd,
                                       const AttentionRule& rule);

// The same as a chain of LibTorch's operators, wherever the tensors are.
[[nodiscard]] at::Tensor attention_by_libtorch(const at::Tensor& q_btnd, const at::Tensor& k_btmd,
                                               const at::Tensor& v_btmd, const AttentionRule& rule);

}  // namespace rp::models
