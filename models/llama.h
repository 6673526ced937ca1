// models/llama.h
// The Llama architecture as layers of a sequential model: embedding, decoder blocks, head.
//
// Shapes: b sequences, t positions, h hidden size, n query heads, m key/value heads, d size of a head, v vocabulary.
// Parameters are placeholders until the runtime points them at weights; their names are those of a Hugging Face
// checkpoint without the prefix of the layer (llama_tensor_name() in llama_weights.h).
#pragma once

#include <memory>

#include "model_files/config.h"
#include "roundpipe/layer.h"

namespace rp::models {

// Each layer but the last takes and hands on a second tensor, if it is given one: where the documents of packed sequences are
// (documents.h). Attention then stays within a document, and positions count from its beginning.

// {ids [b, t] int64} -> {x [b, t, h]}. Parameter: weight [v, h].
[[nodiscard]] std::unique_ptr<Layer> make_llama_embedding(const LlamaConfig& config, at::ScalarType dtype);

// {x [b, t, h]} -> {x [b, t, h]}: causal attention with grouped queries, then the gated MLP, each behind an RMS norm
// and added to its input.
[[nodiscard]] std::unique_ptr<Layer> make_llama_block(const LlamaConfig& config, at::ScalarType dtype);

// {x [b, t, h]} -> {normalised x [b, t, h], LM head's weight [v, h]}. Parameters: norm.weight, lm_head.weight. The
// product of the two is left to the loss, which forms it in pieces.
[[nodiscard]] std::unique_ptr<Layer> make_llama_head(const LlamaConfig& config, at::ScalarType dtype);

}  // namespace rp::models
