// models/layers/gpu_causal_lm_loss.h
// causal_lm_loss() where the tensors are on a GPU. Its own unit because nothing here may wait for the GPU, which rules
// out most of the CPU's way: labels are not read, rows not gathered, nobody is told of a wrong label at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model_files/head_chunks.h"
#include "roundpipe/models.h"

namespace rp::models {

// Tokens of a chunk. Its products have more rows than on the CPU, and the weight's fp32 gradient (where there are
// several chunks) is read and written once per chunk: 512 tokens of a vocabulary of 128256 would move as many bytes for
// it as 2048 do for their logits. Logits of 2048 tokens of that vocabulary take 525 MB in bf16.
inline constexpr std::int64_t kGpuChunkTokens = kGpuHeadChunkTokens;

// The cross entropy [] of n tokens, fp32, and the z-loss where the settings have one: hidden_nh and weight_vh in the
// model's dtype, labels_n int64 on the GPU (-100: not trained), `divisor` a scalar of any dtype, there or on the CPU.
// Untrained tokens go through the products and get gradients of zero from the kernel. The loss is NaN if a label is
// neither -100 nor in the vocabulary, or the divisor is not positive; such a token (such a divisor: every token) gets
// no gradient.
//
// Of one chunk the gradient of the logits is kept for backward, which multiplies it by the gradient of the loss (a
// kernel that does nothing if that is 1) in place, and makes the others of it; the weight's is added to the leaf's
// (models/layers/linear.h). Of several chunks the others are made along with the loss, the weight's in fp32, and
// multiplied in backward. Either way it runs once. Gradients of fp16 are kept undivided, as those of several chunks,
// because a probability over a divisor of thousands is less than the smallest fp16, and divided in backward along with
// the loss scale.
[[nodiscard]] Tensors gpu_causal_lm_loss(const at::Tensor& hidden_nh, const at::Tensor& weight_vh,
                                         const at::Tensor& labels_n, const at::Tensor& divisor,
                                         const CausalLmLossSettings& settings, std::int64_t chunk_tokens);

}  // namespace rp::models
