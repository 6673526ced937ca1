// models/decoder.h
// The layers of a decoder-only transformer, as its ModelConfig describes them: embedding, decoder layers, head.
//
// Shapes: b sequences, t positions, h hidden size, n query heads, m key/value heads, d size of a head, v vocabulary.
// Parameters are placeholders until the runtime points them at weights; names and shapes are those of
// model_files/layer_tensors.h. What TrainedParts does not name requires no gradient.
//
// Each layer but the last takes and hands on a second tensor, if it is given one: where the documents of packed
// sequences are (documents.h). Attention then stays within a document, and positions count from its beginning. Above
// the first layer with experts there are four tensors, the third and fourth of them what the loss balances experts by
// (expert_balance.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "model_files/config/model_config.h"
#include "roundpipe/layer.h"
#include "roundpipe/trained_parts.h"

namespace rp::models {

// {ids [b, t] int64} -> {x [b, t, h]}. Parameter: weight [v, h].
[[nodiscard]] std::unique_ptr<Layer> make_embedding(const ModelConfig& config, const TrainedParts& parts,
                                                    at::ScalarType dtype);

// {x [b, t, h]} -> {x [b, t, h]}: decoder layer `number` of the config, from 0. REQUIRES: what_is_missing(config) has
// no value.
[[nodiscard]] std::unique_ptr<Layer> make_decoder_layer(const ModelConfig& config, std::int64_t number,
                                                        const TrainedParts& parts, at::ScalarType dtype);

// {x [b, t, h]} -> {normalised x [b, t, h], LM head's weight [v, h]}, behind them the two tensors of expert_balance.h
// where the model has experts. Parameters: norm.weight, lm_head.weight. The product of the two is left to the loss,
// which forms it in pieces.
[[nodiscard]] std::unique_ptr<Layer> make_head(const ModelConfig& config, const TrainedParts& parts,
                                               at::ScalarType dtype);

// What a model has, by its config, that these layers do not compute, as "weights quantised by 'gptq'"; nothing: they
// compute it.
[[nodiscard]] std::optional<std::string> what_is_missing(const ModelConfig& config);

}  // namespace rp::models
