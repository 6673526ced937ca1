// models/layers/gpu_causal_lm_loss.h
// Computes causal_lm_loss() for tensors on a GPU. It is separate because nothing here may wait for
// the GPU, which excludes most of the CPU's code: labels are not read, rows are not gathered, and a
// wrong label is not reported immediately.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model_files/head_chunks.h"
#include "roundpipe/models.h"

namespace rp::models {

// The tokens of a chunk. The products have more rows than on the CPU, and if there are several
// chunks, the weight's fp32 gradient is read and written once per chunk. With a vocabulary of
// 128256, chunks of 512 tokens would move as many bytes for this gradient as chunks of 2048 tokens
// move for their logits. The logits of 2048 tokens with this vocabulary need 525 MB in bf16.
inline constexpr std::int64_t kGpuChunkTokens = kGpuHeadChunkTokens;

// Returns the cross entropy [] of n tokens, fp32, and the z-loss if the settings have one.
// hidden_nh and weight_vh have the model's dtype; labels_n is int64 on the GPU (-100: not trained);
// `divisor` is a scalar of any dtype, on the GPU or the CPU. Tokens that are not trained take part
// in the products, and get gradients of zero from the kernel. If a label is neither -100 nor in the
// vocabulary, the loss is NaN and this token gets no gradient. If the divisor is not positive, the
// loss is NaN and no token gets a gradient.
//
// With one chunk, the gradient of the logits is kept for the backward pass. This multiplies it in
// place by the gradient of the loss (with a kernel that does nothing if that is 1), and computes
// the other gradients from it; the weight's gradient is added to that of the leaf
// (models/layers/linear.h). With several chunks, the other gradients are computed together with the
// loss, the weight's in fp32, and are multiplied in the backward pass. In both cases the backward
// pass can run only once. Gradients in fp16 are kept undivided, as those of several chunks, and are
// divided in the backward pass when they are multiplied by the loss scale, because a probability
// divided by thousands is less than the smallest fp16 number.
[[nodiscard]] Tensors gpu_causal_lm_loss(const at::Tensor& hidden_nh, const at::Tensor& weight_vh,
                                         const at::Tensor& labels_n, const at::Tensor& divisor,
                                         const CausalLmLossSettings& settings, std::int64_t chunk_tokens);

}  // namespace rp::models
