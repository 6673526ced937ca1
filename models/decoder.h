// models/decoder.h
// Creates the layers of a decoder-only transformer from its ModelConfig: embedding, decoder layers,
// head.
//
// Shapes: b sequences, t positions, h hidden size, n query heads, m key/value heads, d size of a
// head, v vocabulary. Parameters are placeholders until the runtime points them at weights; their
// names and shapes are those of model_files/layer_tensors.h. Parameters that TrainedParts does not
// select do not require gradients.
//
// Each layer except the last takes and returns a second tensor, if it is given one: the lengths of
// the documents of packed sequences (documents.h). Attention then stays within a document, and
// positions count from its beginning. Above the first layer with experts there are four tensors;
// the loss balances the experts by the third and the fourth (expert_balance.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "model_files/config/model_config.h"
#include "roundpipe/layer.h"
#include "roundpipe/trained_parts.h"

namespace rp::models {

// Makes the embedding: {ids [b, t] int64} -> {x [b, t, h]}. Parameter: weight [v, h].
[[nodiscard]] std::unique_ptr<Layer> make_embedding(const ModelConfig& config, const TrainedParts& parts,
                                                    at::ScalarType dtype);

// Makes decoder layer `number` of the config, counted from 0: {x [b, t, h]} -> {x [b, t, h]}.
// REQUIRES: what_is_missing(config) has no value.
[[nodiscard]] std::unique_ptr<Layer> make_decoder_layer(const ModelConfig& config, std::int64_t number,
                                                        const TrainedParts& parts, at::ScalarType dtype);

// Makes the head: {x [b, t, h]} -> {normalised x [b, t, h], LM head's weight [v, h]}, followed by
// the two tensors of expert_balance.h if the model has experts. Parameters: norm.weight,
// lm_head.weight. The loss computes the product of the two outputs, in pieces.
[[nodiscard]] std::unique_ptr<Layer> make_head(const ModelConfig& config, const TrainedParts& parts,
                                               at::ScalarType dtype);

// Returns the feature of a model, according to its config, that these layers do not compute, such
// as "weights quantised by 'gptq'"; nothing if they compute the model.
[[nodiscard]] std::optional<std::string> what_is_missing(const ModelConfig& config);

}  // namespace rp::models
