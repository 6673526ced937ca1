// models/layers/attention/gpu_attention.h
// Computes attention with LibTorch's own kernels: always on a GPU, and on the CPU in the cases for
// which attention.cc has no tiles.
//
// On a GPU it uses at::scaled_dot_product_attention, which uses its flash kernel for bf16 and fp16,
// and its memory-efficient kernel for fp32, which the flash kernel does not support. The backward
// passes of these kernels have a fixed order of sums only in LibTorch's deterministic mode without
// "warn only". So if the process has set deterministic mode before the first layer runs
// (at::globalContext().setDeterministicAlgorithms(true, warn_only), with either value of
// warn_only), the backward pass here runs without "warn only". A second backward pass is refused.
//
// In bf16 and fp16, attention with documents (documents.h), a window or sinks is one call of the
// flash kernel itself; with documents, of its variant for sequences of different lengths. The
// kernel does not support sinks, but it returns the logarithm of each sum of exponentials, from
// which the output and the gradients with a sink can be computed. If this kernel cannot be used
// (fp32, heads whose size is not a multiple of 8, a card before compute capability 8.0), each
// document is a call of its own. The host needs the lengths for
// this, so it waits for the GPU once. With a window or sinks, the complete scores are computed.
// Heads of more than 256 elements are computed in blocks (blocked_attention.h).
//
// The flash kernel needs heads of one size, so on a GPU the smaller ones of queries and keys or of values
// are padded with zeros, and the output is cut. Neither changes a result.
#pragma once

#include "models/layers/attention/attention.h"

namespace rp::models {

// Computes the same as causal_attention() (attention.h), for tensors that are computed on a GPU.
[[nodiscard]] at::Tensor gpu_attention(const at::Tensor& q_btnd, const at::Tensor& k_btmd, const at::Tensor& v_btme,
                                       const AttentionRule& rule);

// Computes the same by a chain of LibTorch's operators, on any device.
[[nodiscard]] at::Tensor attention_by_libtorch(const at::Tensor& q_btnd, const at::Tensor& k_btmd,
                                               const at::Tensor& v_btme, const AttentionRule& rule);

}  // namespace rp::models
