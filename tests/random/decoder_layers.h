// tests/random/decoder_layers.h
// Draws decoder layers of rp::models as layers of random models: attention, MLPs and mixtures of
// experts of every kind that a ModelConfig can describe; trained, frozen, or frozen with LoRA
// pairs. Frozen weights may be quantised in every format.
#pragma once

#include <cstdint>
#include <string>

#include "roundpipe/layer.h"
#include "tests/random/draw.h"

namespace rp::test {

struct DecoderSettings {
  std::int64_t hidden = 0;  // width of x
  at::ScalarType dtype = at::kFloat;
  bool is_frozen = false;
};

struct DrawnDecoderLayer {
  LayerSpec spec{};
  LayerSpec expanded{};        // the same layer, stored with the values that quantised weights expand to
  std::string text{};          // describes what was drawn
  bool draws_numbers = false;  // true if it has dropout
  bool is_quantised = false;   // true if it has quantised weights
};

// Draws a layer that changes x, which is a sequence, and passes the rest on. If there are ids, the
// first id of a row determines how many tokens its first document has; the others are the second
// document.
[[nodiscard]] DrawnDecoderLayer draw_decoder_layer(Draw& draw, const DecoderSettings& settings);

}  // namespace rp::test
