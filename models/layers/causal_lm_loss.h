// models/layers/causal_lm_loss.h
// What is behind rp::models::causal_lm_loss(): LM head and cross entropy in chunks of tokens.
//
// Tokens that are not trained are left out before anything is computed. The gradients are made along with the loss,
// while the logits of a chunk exist, and kept for backward: the logits are overwritten by their gradient, and only one
// chunk of them exists at a time. Products are in the dtype of the weights, on the CPU those of fp16 in fp32; softmax,
// loss and sums over chunks are fp32.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model_files/head_chunks.h"
#include "roundpipe/models.h"

namespace rp::models {

// Tokens of a chunk, where the microbatch is not smaller. Fewer cost time, because the weight's fp32 gradient is read
// and written once per chunk: 2048 tokens of a vocabulary of 49152, h = 576, bf16, one thread take 2.6 s in chunks of
// 128, 1.4 s of 256, 1.2 s of 512, 1.5 s of 1024 and 1.1 s of 2048 (benchmarks/llama_layers --batch 8 --chunk N, beside
// other work on the machine: the last three do not differ).
inline constexpr std::int64_t kChunkTokens = kHeadChunkTokens;

// Outputs, arguments and numbers as for causal_lm_loss(). The gradient of the z-loss comes with that of the cross
// entropy, whose backward must run; the number itself has none. The number of chunks changes the rounding of the
// weight's gradient; `chunk_tokens` 0 is kChunkTokens, on a GPU kGpuChunkTokens.
[[nodiscard]] Tensors causal_lm_loss_of(const Tensors& outputs, const Tensors& arguments,
                                        const CausalLmLossSettings& settings = {}, std::int64_t chunk_tokens = 0);

// The name of a loss with these settings begins so.
inline constexpr std::string_view kCausalLmLoss = "causal_lm_loss";

// What the name of a loss has that caps its logits, and behind it the number.
inline constexpr std::string_view kLogitCap = " logit_softcap=";
[[nodiscard]] std::string logit_cap_text(double cap);

}  // namespace rp::models
