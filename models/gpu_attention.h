// models/gpu_attention.h
// Attention by LibTorch's own kernels: all of it on a GPU, and on the CPU what attention.cc has no blocks for.
//
// On a GPU: at::scaled_dot_product_attention, which takes its flash kernel for bf16 and fp16, and for fp32, which that does
// not know, its memory-efficient one. Their backward has a fixed order of sums only in LibTorch's deterministic mode without
// "warn only". So where the process has set that mode (at::globalContext().setDeterministicAlgorithms(true, warn_only), before
// the first layer runs), the backward here runs without "warn only" whatever was said; a second one is refused.
//
// Documents (documents.h) in bf16 and fp16 go through one call of the flash kernel's variant for sequences of different
// lengths. Where that kernel does not fit (fp32, heads of an odd size, a card before compute capability 8.0), each document
// is a call of its own: for that the lengths must be known, so it waits for the GPU once.
#pragma once

#include <ATen/core/Tensor.h>

namespace rp::models {

// As causal_attention() (attention.h), for tensors that run on a GPU.
[[nodiscard]] at::Tensor gpu_attention(const at::Tensor& q_btnd, const at::Tensor& k_btmd, const at::Tensor& v_btmd,
                                       const at::Tensor& documents_bk);

// The same as a chain of LibTorch's operators, wherever the tensors are.
[[nodiscard]] at::Tensor attention_by_libtorch(const at::Tensor& q_btnd, const at::Tensor& k_btmd, const at::Tensor& v_btmd,
                                               const at::Tensor& documents_bk);

}  // namespace rp::models
