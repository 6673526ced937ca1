// models/layers/causal_lm_loss.h
// Implements rp::models::causal_lm_loss(): LM head and cross entropy in chunks of tokens.
//
// Tokens that are not trained are left out before anything is computed. The gradients are computed
// together with the loss, while the logits of a chunk exist, and are kept for the backward pass.
// The logits are overwritten by their gradient, and only one chunk of them exists at a time.
// Products are computed in the dtype of the weights (on the CPU in fp32 for fp16); softmax, loss
// and sums over chunks are fp32.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model_files/head_chunks.h"
#include "roundpipe/models.h"

namespace rp::models {

// The tokens of a chunk, if the microbatch has as many. Smaller chunks cost time, because the
// weight's fp32 gradient is read and written once per chunk. 2048 tokens with a vocabulary of
// 49152, h = 576, bf16 and one thread take 2.6 s in chunks of 128, 1.4 s in chunks of 256, 1.2 s of
// 512, 1.5 s of 1024 and 1.1 s of 2048 (benchmarks/llama_layers --batch 8 --chunk N; other programs
// were running, and the last three do not differ significantly).
inline constexpr std::int64_t kChunkTokens = kHeadChunkTokens;

// Takes the same outputs and arguments as causal_lm_loss(), and returns the same numbers. The
// gradient of the z-loss comes with that of the cross entropy, whose backward must run; the number
// itself has no gradient. The number of chunks changes the rounding of the weight's gradient.
// `chunk_tokens` 0 means kChunkTokens, or kGpuChunkTokens on a GPU.
[[nodiscard]] Tensors causal_lm_loss_of(const Tensors& outputs, const Tensors& arguments,
                                        const CausalLmLossSettings& settings = {}, std::int64_t chunk_tokens = 0);

// The names of all losses that causal_lm_loss() makes begin with this text.
inline constexpr std::string_view kCausalLmLoss = "causal_lm_loss";

// The part of a loss's name that says that it caps its logits. It is followed by the cap.
inline constexpr std::string_view kLogitCap = " logit_softcap=";
[[nodiscard]] std::string logit_cap_text(double cap);

}  // namespace rp::models
