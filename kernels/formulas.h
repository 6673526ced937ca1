// kernels/formulas.h
// Defines the variants of formulas that differ between models, and the length of the delta rule's
// chunks.
#pragma once

#include <cstdint>

namespace rp {

// How a root mean square norm applies its weight w to the normalised x, which is fp32 until it is
// rounded to the activations' dtype.
enum class NormKind : std::uint8_t {
  kRounded,    // w * round(x): Llama, Qwen
  kUnrounded,  // round(w * x): GPT-OSS, OLMo
  kOffset,     // round((1 + w) * x): Gemma
};

// A gated linear unit, such as the one that joins the results of an MLP's first two products.
enum class Activation : std::uint8_t {
  kSilu,          // gate * sigmoid(gate) * up
  kGeluTanh,      // gelu(gate) * up, with the tanh approximation: Gemma
  kClampedSwish,  // gate * sigmoid(1.702 * gate) * (up + 1), gate at most 7, up from -7 to 7: GPT-OSS
  kSigmoid,       // sigmoid(gate) * up: the output gate of Qwen3.5's attention
};

// The number of tokens whose contribution to the state of a gated delta rule is computed at once.
inline constexpr std::int64_t kDeltaChunk = 64;

}  // namespace rp
