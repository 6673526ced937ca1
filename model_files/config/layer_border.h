// model_files/config/layer_border.h
// Says what passes from one layer of the sequential model to the next.
#pragma once

#include <cstdint>
#include <vector>

#include "model_files/config/model_config.h"

namespace rp {

// What passes in addition to the hidden states, the lengths of documents and the balance of experts.
struct LayerBorder {
  // The token ids and their embeddings, from which decoder layers compute their per-layer inputs.
  bool has_tokens = false;
  // The decoder layers, counted from 0, whose keys and values pass.
  std::vector<std::int64_t> key_layers{};
};

// Returns the border above a layer of the sequential model, below its next layer. Layer 0 is the
// embedding, num_layers() + 1 the head.
[[nodiscard]] LayerBorder border_above(const ModelConfig& config, std::int64_t layer);

// Returns the bytes of a token in everything that passes, for activations of `element_bytes`. The
// balance of experts, a few numbers for a whole microbatch, is left out.
[[nodiscard]] std::int64_t border_bytes(const ModelConfig& config, std::int64_t layer, std::int64_t element_bytes);

}  // namespace rp
