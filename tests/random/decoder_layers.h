// tests/random/decoder_layers.h
// Draws decoder layers of rp::models as layers of random models: attention, MLPs and mixtures of experts of every kind
// that a ModelConfig can say, trained, frozen, or frozen with pairs of LoRA.
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
  std::string text{};          // what was drawn
  bool draws_numbers = false;  // it has dropout
};

// A layer that changes x, which is a sequence, and passes on the rest. Where there are ids, the first of a row says how
// many tokens its first document has; the others are the second document.
[[nodiscard]] DrawnDecoderLayer draw_decoder_layer(Draw& draw, const DecoderSettings& settings);

}  // namespace rp::test
