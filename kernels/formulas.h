// kernels/formulas.h
// Formulas of which each model has one.
#pragma once

#include <cstdint>

namespace rp {

// How a root mean square norm applies its weight w to the normalised x (fp32 until it is rounded to the activations'
// dtype).
enum class NormKind : std::uint8_t {
  kRounded,    // w * round(x): Llama, Qwen
  kUnrounded,  // round(w * x): GPT-OSS, OLMo
  kOffset,     // round((1 + w) * x): Gemma
};

// A gated linear unit of an MLP's two products.
enum class Activation : std::uint8_t {
  kSilu,          // gate * sigmoid(gate) * up
  kGeluTanh,      // gelu(gate) * up, by the approximation with tanh: Gemma
  kClampedSwish,  // gate * sigmoid(1.702 * gate) * (up + 1), gate at most 7, up from -7 to 7: GPT-OSS
};

}  // namespace rp
