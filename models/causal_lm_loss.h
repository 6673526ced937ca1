// models/causal_lm_loss.h
// What is behind rp::models::causal_lm_loss(): LM head and cross entropy in chunks of tokens.
//
// Tokens that are not trained are left out before anything is computed. The gradients are made along with the loss,
// while the logits of a chunk exist, and kept for backward: the logits are overwritten by their gradient, and whole
// logits never exist. Products are in the dtype of the weights; softmax, loss and sums over chunks are fp32.
#pragma once

#include <cstdint>

#include "roundpipe/models.h"

namespace rp::models {

// Outputs and arguments as for causal_lm_loss(). The number of chunks changes the rounding of the weight's gradient.
[[nodiscard]] at::Tensor causal_lm_loss_of(const Tensors& outputs, const Tensors& arguments,
                                           std::int64_t chunk_tokens);

// The tokens of a chunk that causal_lm_loss() takes.
[[nodiscard]] std::int64_t default_chunk_tokens(std::int64_t vocabulary, at::ScalarType dtype);

}  // namespace rp::models
